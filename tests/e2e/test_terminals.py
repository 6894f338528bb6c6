"""A frontend and a worker typed in two terminals find each other without a broker, whichever comes first."""

import signal
from typing import Any

import pytest

from .together import together

AGG = ("graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
WORKER = ("in=dyn://llama.backend.generate", "out=echo_core", "sample")


@pytest.mark.parametrize("first", ["frontend", "worker"])
@together
def test_two_terminals_each_restarted_once(machine: Any, first: str) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "1"
    port = machine.port()
    url = f"http://127.0.0.1:{port}"
    how = ("dynamo-run", "in=http", "out=auto") if first == "frontend" else ("dynamo.frontend",)

    def start(which: str) -> Any:
        words = (*how, "--http-port", port) if which == "frontend" else ("dynamo-run", *WORKER)
        return machine.start(*words)

    second = "worker" if first == "frontend" else "frontend"
    commands = {first: start(first)}
    commands[first].ready()
    assert machine.raw("GET", "/v1/status")[1]["pid"] == commands[first].pid
    commands[second] = start(second)
    commands[second].ready()
    machine.until(lambda: machine.serves(url))
    answer = machine.chat(url, "hello")
    assert "hello" in answer

    # a third shell sees both
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"] * 3)
    rows = {row["component"]: row for row in machine.ps()}
    guests = {"Worker"} if second == "worker" else {"Processor", "Frontend"}
    assert {name for name, row in rows.items() if row["guest"]} == guests
    assert f"pid {commands[second].pid}" in rows[guests.pop()]["guest"]
    assert {row["state"] for row in rows.values()} == {"Ready"}
    text = machine.run("dynamo", "ps").out
    assert all(name in text for name in rows)
    assert f"pid {commands[second].pid}" in machine.run("dynamo", "status").out

    # end the holder of the node: the other takes its seat, and they find each other again
    commands[first].end()
    status = machine.until(lambda: machine.socket.exists() and machine.raw("GET", "/v1/status")[1])
    assert (status["pid"], status["role"]) == (commands[second].pid, "holder")
    machine.until(lambda: machine.answers(url, "/health") == (503 if first == "worker" else 0))
    commands[first] = start(first)
    commands[first].ready()
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello") == answer

    # the same the other way round, without a farewell
    commands[second].end(signal.SIGKILL)
    machine.until(lambda: machine.raw_status() == commands[first].pid, 5.0, "the other takes the seat")
    commands[second] = start(second)
    commands[second].ready()
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello") == answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@together
def test_a_stream_survives_the_end_of_the_holder(machine: Any, number: int) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "10"
    holder = machine.start("dynamod")
    machine.until(lambda: machine.socket.exists())
    worker = machine.start("dynamo-run", *WORKER)
    port = machine.port()
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", port)
    url = front.ready()
    worker.ready()
    machine.until(lambda: machine.serves(url))
    text = " ".join(map(str, range(60)))
    stream = machine.stream(url, text)
    holder.end(number)
    machine.until(lambda: machine.raw_status() in (worker.pid, front.pid), 3.0, "a guest takes the seat")
    stream.read()
    assert (stream.finish, stream.error) == ("stop", None)
    assert text in stream.text
    assert text in machine.chat(url, text)
    machine.until(lambda: {row["state"] for row in machine.ps()} == {"Ready"} and len(machine.ps()) == 3)
    assert {row["restarts"] for row in machine.ps()} == {0}


@together
def test_verbs_reach_a_guest(machine: Any) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "1"
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    url = front.ready()
    worker = machine.start("dynamo-run", *WORKER)
    worker.ready()
    machine.until(lambda: len(machine.ps()) == 3)
    row = machine.row("Worker")

    inspected = machine.run("dynamo", "inspect", "Worker", "--output", "json")
    assert [one["kind"] for one in inspected.json if one["path"] == "/Worker"] == ["WorkerComponent"]
    connection = machine.unix()
    connection.request("GET", "/v1/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert 'process="run-echo_core/Worker.0"' in metrics
    assert f'process="dynamod pid {worker.pid}"' in metrics
    logs = machine.run("dynamo", "logs", "Worker").out
    assert "engine echo_core serves model sample" in logs

    done = machine.run("dynamo", "restart", "Worker")
    assert done.code == 0, done.err
    machine.until(lambda: machine.row("Worker")["state"] == "Ready")
    assert machine.row("Worker")["pid"] != row["pid"]

    done = machine.run("dynamo", "scale", "Worker", 2)
    assert done.code == 0, done.err
    machine.until(lambda: [one["state"] for one in machine.ps("Worker")] == ["Ready", "Ready"])
    worker.tree()
    machine.until(lambda: len(_instances(machine, url)) == 2)
    assert "hello" in machine.chat(url, "hello")

    done = machine.run("dynamo", "drain", "Worker")
    assert done.code == 0, done.err
    machine.until(lambda: machine.answers(url, "/health") == 503)
    machine.until(lambda: not machine.ps("Worker"))

    unknown = machine.run("dynamo", "restart", "Wroker")
    assert unknown.code == 1
    assert "no component 'Wroker'" in unknown.mistake()


@together
def test_terminals_with_the_same_words_have_names_of_their_own(machine: Any) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "1"
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    url = front.ready()
    workers = [machine.start("dynamo-run", *WORKER) for _ in range(3)]
    for worker in workers:
        worker.prints("ready\n")
    rows = machine.until(lambda: [row for row in machine.ps("Worker") if row["state"] == "Ready"])
    machine.until(lambda: len(machine.ps("Worker")) == 3)
    rows = {row["graph"]: row for row in machine.ps("Worker")}
    assert rows.keys() == {"run-echo_core", "run-echo_core-2", "run-echo_core-3"}
    assert len({row["guest"] for row in rows.values()}) == 3
    machine.until(lambda: len(_instances(machine, url)) == 3)

    several = machine.run("dynamo", "restart", "Worker").mistake()
    assert all(f"{name}/Worker" in several for name in rows)
    done = machine.run("dynamo", "restart", "run-echo_core-2/Worker")
    assert done.code == 0, done.err
    machine.until(lambda: all(row["state"] == "Ready" for row in machine.ps()))
    after = {row["graph"]: row["pid"] for row in machine.ps("Worker")}
    assert [name for name in rows if rows[name]["pid"] != after[name]] == ["run-echo_core-2"]
    for worker in workers:
        worker.tree()

    for name in ("run-echo_core-3", "run-echo_core-3/Worker", "run-echo_core-3/Worker.0"):
        lines = machine.run("dynamo", "logs", name).out.splitlines()
        assert any("engine echo_core serves model sample" in line for line in lines), name
        assert all("run-echo_core-3/Worker.0" in line for line in lines if " INFO " in line), lines
    assert machine.run("dynamo", "stop", "run-echo_core-3").code == 0
    machine.until(lambda: len(machine.ps("Worker")) == 2)

    # a name that was chosen is not changed, here or there
    chosen = machine.agg("--name", "run-frontend")
    result = chosen.wait(20)
    assert result.code not in (0, 3)
    assert "a graph 'run-frontend' runs already" in result.err.splitlines()[-1]
    handed = machine.run("dynamo", "serve", *AGG, "--name", "run-echo_core", "--detach")
    assert "a graph 'run-echo_core' runs already" in handed.mistake()


def _instances(machine: Any, url: str) -> list[Any]:
    import json

    found: list[Any] = json.loads(machine.ask(url, "/health")[1])["instances"]
    return found
