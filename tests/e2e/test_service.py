"""`dynamod` as a service: graphs are handed over, stopped, and come back with it."""

import json
import signal
from typing import Any

ECHO = ("-f", "configs/agg.yaml", "--Worker.engine=echo_core")


def names(machine: Any) -> list[str]:
    return [graph["name"] for graph in machine.raw("GET", "/v1/status")[1]["graphs"]]


def test_graphs_are_handed_over_and_come_back(machine: Any) -> None:
    state = machine.folder / "state"
    (machine.folder / "d.yaml").write_text(
        "log_level: debug\n"
        "graphs:\n"
        "  - {target: 'graphs.agg:Frontend', config: configs/agg.yaml, name: own,\n"
        "     overrides: ['--Worker.engine=echo_full', '--Frontend.port=0']}\n"
    )
    words = ("--config", "d.yaml", "--socket", machine.socket, "--state-dir", state)
    daemon = machine.start("dynamod", *words)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert names(machine) == ["own"]

    ports = [machine.port(), machine.port()]
    for name, port in zip("ab", ports, strict=True):
        handed = machine.run("dynamo", "serve", *ECHO, "--detach", "--name", name, "--port", port)
        assert handed.code == 0, handed.err
        assert f"graph {name} handed over" in handed.out
        assert f"http://localhost:{port}" in handed.out
    again = machine.run("dynamo", "serve", *ECHO, "--detach", "--name", "a", "--port", 0)
    assert "a graph 'a' runs already" in again.mistake()
    taken = machine.run("dynamo", "serve", *ECHO, "--detach", "--name", "c", "--port", ports[0])
    assert f"port {ports[0]} is in use" in taken.mistake()
    assert names(machine) == ["own", "a", "b"]
    several = machine.run("dynamo", "restart", "Worker").mistake()
    assert all(f"{name}/Worker" in several for name in ("own", "a", "b"))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    machine.until(lambda: all(machine.serves(url) for url in urls))
    daemon.tree()
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())] == ["a", "b"]

    stopped = machine.run("dynamo", "stop", "b")
    assert stopped.code == 0, stopped.err
    assert names(machine) == ["own", "a"]
    assert machine.free(urls[1])
    assert "b" in machine.run("dynamo", "stop", "b").mistake()

    assert daemon.end(signal.SIGTERM).code == 0
    assert machine.free(urls[0])
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())] == ["a"]

    daemon = machine.start("dynamod", *words)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert names(machine) == ["own", "a"]
    machine.until(lambda: machine.serves(urls[0]))
    machine.until(lambda: {row["state"] for row in machine.ps()} == {"Ready"})
    daemon.end(signal.SIGKILL)

    # its port is taken: the rest comes up, the log says why this one does not
    stranger = machine.agg("--Frontend.port", ports[0], "--socket", machine.folder / "other.sock")
    stranger.ready()
    daemon = machine.start("dynamod", *words)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert names(machine) == ["own"]
    assert f"port {ports[0]} is in use" in daemon.err


def test_a_second_command_joins_and_its_graph_is_its_own(machine: Any) -> None:
    daemon = machine.start("dynamod")
    machine.until(lambda: machine.raw_status() == daemon.pid)
    command = machine.agg()
    url = command.ready()
    status = machine.raw("GET", "/v1/status")[1]
    assert status["graphs"] == [{"name": "agg", "ready": True, "guest": f"dynamo serve pid {command.pid}"}]
    assert "hello" in machine.chat(url, "hello")
    stopped = machine.run("dynamo", "stop", "agg")
    assert stopped.code == 0, stopped.err
    machine.until(lambda: machine.ps() == [])
    assert machine.free(url)
