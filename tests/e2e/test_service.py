"""`dynamod` as a service: graphs are handed over, stopped, and come back with it."""

import json
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .together import together

ECHO = ("-f", "configs/agg.yaml", "--Worker.engine=echo_core")


def names(machine: Any) -> list[str]:
    return [graph["name"] for graph in machine.raw("GET", "/v1/status")[1]["graphs"]]


@together
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
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())["graphs"]] == ["a", "b"]

    stopped = machine.run("dynamo", "stop", "b")
    assert stopped.code == 0, stopped.err
    assert names(machine) == ["own", "a"]
    assert machine.free(urls[1])
    assert "b" in machine.run("dynamo", "stop", "b").mistake()

    assert daemon.end(signal.SIGTERM).code == 0
    assert machine.free(urls[0])
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())["graphs"]] == ["a"]

    daemon = machine.start("dynamod", *words)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert names(machine) == ["own", "a"]
    machine.until(lambda: machine.serves(urls[0]))
    machine.until(lambda: {row["state"] for row in machine.ps()} == {"Ready"})
    daemon.end(signal.SIGKILL)

    # its port is taken: the rest comes up; log, status and ps say why this one does not
    stranger = machine.agg("--Frontend.port", ports[0], "--socket", machine.folder / "other.sock")
    stranger.ready()
    daemon = machine.start("dynamod", *words)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert names(machine) == ["own", "a"]
    why = f"port {ports[0]} is in use"
    assert why in daemon.err
    assert why in machine.raw("GET", "/v1/status")[1]["graphs"][1]["error"]
    assert f"a: failed: Frontend cannot listen: {why}" in machine.run("dynamo", "status").out
    down = [row for row in machine.ps() if row["graph"] == "a"]
    assert {(row["component"], row["state"]) for row in down} == {
        (n, "Fatal") for n in ("Worker", "Processor", "Frontend")
    }
    assert all(why in row["last_error"] for row in down)
    assert why in machine.run("dynamo", "restart", "a/Worker").mistake()

    # it is not forgotten when others change, and a reload tries it again
    other = machine.run("dynamo", "serve", *ECHO, "--detach", "--name", "other", "--port", 0)
    assert other.code == 0, other.err
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())["graphs"]] == ["other", "a"]
    stranger.end()
    daemon.send(signal.SIGHUP)
    machine.until(lambda: names(machine) == ["own", "other", "a"])
    machine.until(lambda: machine.serves(urls[0]))
    daemon.tree()

    # and stop forgets it
    daemon.end()
    stranger = machine.agg("--Frontend.port", ports[0], "--socket", machine.folder / "other.sock")
    stranger.ready()
    daemon = machine.start("dynamod", *words)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert machine.run("dynamo", "stop", "a").code == 0
    assert names(machine) == ["own", "other"]
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())["graphs"]] == ["other"]
    daemon.tree()


@together
def test_a_second_command_joins_and_its_graph_is_its_own(machine: Any) -> None:
    daemon = machine.start("dynamod")
    machine.until(lambda: machine.raw_status() == daemon.pid)
    command = machine.agg()
    url = command.ready()
    status = machine.raw("GET", "/v1/status")[1]
    (graph,) = status["graphs"]
    assert (graph["name"], graph["ready"], graph["session"]) == ("agg", True, f"dynamo serve pid {command.pid}")
    assert "hello" in machine.chat(url, "hello")
    stopped = machine.run("dynamo", "stop", "agg")
    assert stopped.code == 0, stopped.err
    machine.until(lambda: machine.ps() == [])
    assert machine.free(url)
    result = command.wait(5)
    assert (result.code, "graph agg was stopped" in result.err) == (0, True), "and its command ends with it"
    assert machine.raw_status() == daemon.pid


class Manager:
    """The end of NOTIFY_SOCKET that is systemd's."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify.sock"
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(self.path))
        self.heard: list[dict[str, str]] = []

    def until(self, key: str, seconds: float = 20.0) -> dict[str, str]:
        """Wait for the next message with this key."""
        end = time.monotonic() + seconds
        while True:
            self._sock.settimeout(max(0.01, end - time.monotonic()))
            lines = self._sock.recv(4096).decode().splitlines()
            words = dict(line.split("=", 1) for line in lines)
            self.heard.append(words)
            if key in words:
                return words

    def close(self) -> None:
        self._sock.close()


def configure(machine: Any, **graphs: str) -> None:
    """Write d.yaml with graphs of one echo_full worker each; the value is its context length."""
    lines = ["log_level: debug", "graphs:"]
    for name, context in graphs.items():
        overrides = f"['--Worker.engine=echo_full', '--Worker.context_length={context}']"
        lines.append(f"  - {{target: 'graphs.agg:Frontend', config: configs/agg.yaml, name: {name},")
        lines.append(f"     service_name: Worker, overrides: {overrides}}}")
    (machine.folder / "d.yaml").write_text("\n".join(lines) + "\n")


def pids(machine: Any) -> dict[str, int]:
    return {row["graph"]: row["pid"] for row in machine.ps()}


def all_ready(machine: Any, *graphs: str) -> Callable[[], bool]:
    return lambda: {row["graph"]: row["state"] for row in machine.ps()} == dict.fromkeys(graphs, "Ready")


def test_systemd_is_told(machine: Any) -> None:
    configure(machine, one="100", two="100")
    manager = Manager(machine.folder)
    try:
        daemon = machine.start(
            "dynamod", "-c", "d.yaml", NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="1000000", STATE_DIRECTORY=""
        )
        words = manager.until("READY")
        assert words == {"READY": "1", "STATUS": "serving 2 graphs"}
        assert sorted(names(machine)) == ["one", "two"]
        for _ in range(4):
            assert manager.until("WATCHDOG", 1.0) == {"WATCHDOG": "1"}  # later, and systemd would kill it
        configure(machine, one="100")
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        daemon.send(signal.SIGHUP)
        words = manager.until("RELOADING")
        assert words["RELOADING"] == "1"
        assert before < int(words["MONOTONIC_USEC"]) < time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert manager.until("READY")["STATUS"] == "serving 1 graph"
        assert names(machine) == ["one"]
        manager.until("WATCHDOG", 1.0)
        assert not any("STOPPING" in words for words in manager.heard)
        daemon.send(signal.SIGTERM)
        assert manager.until("STOPPING") == {"STOPPING": "1"}
        assert daemon.wait().code == 0
    finally:
        manager.close()


@together
def test_a_reload_changes_only_what_changed(machine: Any) -> None:
    configure(machine, same="100", other="100", gone="100")
    daemon = machine.start("dynamod", "-c", "d.yaml")
    machine.until(all_ready(machine, "same", "other", "gone"))
    handed = machine.run("dynamo", "serve", *ECHO, "--service-name", "Worker", "--detach", "--name", "handed")
    assert handed.code == 0, handed.err
    machine.until(all_ready(machine, "same", "other", "gone", "handed"))
    before = pids(machine)

    # mistakes in the file: one line each, and nothing is touched
    for text, says in (
        ("graphs:\n  - {target: 'graphs.agg:Frontend', confg: x}\n", "confg"),
        ("graphs: [\n", "d.yaml"),
        ("graphs:\n  - {target: 'nowhere.agg:Frontend'}\n", "graphs[0]"),
        (
            "graphs:\n" + "  - {target: 'graphs.agg:Frontend', config: configs/agg.yaml, overrides: "
            "['--Worker.engine=echo_full']}\n" * 2,
            "graphs[1].name",
        ),
    ):
        (machine.folder / "d.yaml").write_text(text)
        length = len(daemon.err)
        daemon.send(signal.SIGHUP)
        machine.until(lambda length=length: "nothing reloaded" in daemon.err[length:])
        errors = [line for line in daemon.err[length:].splitlines() if "ERROR" in line]
        assert len(errors) == 1, errors
        assert "d.yaml" in errors[0]
        assert says in errors[0]
        assert "Traceback" not in daemon.err[length:]
        assert pids(machine) == before

    configure(machine, same="100", other="200", fresh="100")
    daemon.send(signal.SIGHUP)
    machine.until(lambda: set(names(machine)) == {"same", "other", "fresh", "handed"})
    machine.until(all_ready(machine, "same", "other", "fresh", "handed"))
    daemon.tree()
    after = pids(machine)
    assert {name for name in after if after[name] == before.get(name)} == {"same", "handed"}
    assert "graph other changes (Worker: config)" in daemon.err
    assert "graph gone is no longer named" in daemon.err

    # nothing has changed; and one that was stopped by hand comes again
    assert machine.run("dynamo", "stop", "fresh").code == 0
    daemon.send(signal.SIGHUP)
    machine.until(all_ready(machine, "same", "other", "fresh", "handed"))
    daemon.tree()
    again = pids(machine)
    assert {name for name in again if again[name] == after[name]} == {"same", "other", "handed"}

    # what cannot start does not take its predecessor with it
    taken = machine.port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken))
        holder.listen()
        whole = "{target: 'graphs.agg:Frontend', config: configs/agg.yaml, name: same, overrides: "
        whole += f"['--Worker.engine=echo_full', '--Frontend.host=127.0.0.1', '--Frontend.port={taken}']}}"
        (machine.folder / "d.yaml").write_text(f"graphs:\n  - {whole}\n")
        daemon.send(signal.SIGHUP)
        machine.until(lambda: "graph same runs on as it was" in daemon.err)
    assert f"port {taken} is in use" in daemon.err
    machine.until(all_ready(machine, "same", "handed"))
    assert pids(machine) == {name: again[name] for name in ("same", "handed")}


@together
def test_a_reload_restarts_only_the_processes_that_differ(machine: Any) -> None:
    ports = [machine.port(), machine.port()]

    def write(*words: str, port: int = ports[0]) -> None:
        texts = ", ".join(f"'--{word}'" for word in ("Worker.engine=echo_core", f"Frontend.port={port}", *words))
        entry = f"  - {{target: 'graphs.agg:Frontend', config: configs/agg.yaml, overrides: [{texts}]}}"
        (machine.folder / "d.yaml").write_text(f"graphs:\n{entry}\n")

    def running() -> dict[str, int]:
        return {row["process"]: row["pid"] for row in machine.ps() if row["state"] == "Ready"}

    def reloaded(replaced: str, processes: int) -> dict[str, int]:
        """Reload; what is told first is told before anything has changed, so wait for the change itself."""
        count, old = daemon.err.count("reload: graph agg changes"), running().get(replaced)
        daemon.send(signal.SIGHUP)
        machine.until(lambda: daemon.err.count("reload: graph agg changes") > count)
        machine.until(lambda: running().get(replaced, old) != old)
        machine.until(lambda: len(running()) == processes)
        machine.until(lambda: machine.ps() and all(row["state"] == "Ready" for row in machine.ps()))
        daemon.tree()
        return running()

    write()
    daemon = machine.start("dynamod", "-c", "d.yaml", DYN_TOKEN_ECHO_DELAY_MS="5")
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    machine.until(lambda: machine.serves(urls[0]))
    machine.until(lambda: len(running()) == 2)
    first = running()

    # more workers: nobody ends
    write("Worker.ServiceArgs.workers=2")
    second = reloaded("agg/Worker.1", 3)
    assert second == {**first, "agg/Worker.1": second["agg/Worker.1"]}
    machine.until(lambda: len(json.loads(machine.ask(urls[0], "/health")[1])["instances"]) == 2)

    # other settings of the worker: the door stays open, and the open stream is read to its end
    text = " ".join(map(str, range(100)))
    stream = machine.stream(urls[0], text)
    write("Worker.ServiceArgs.workers=2", "Worker.context-length=1000")
    daemon.send(signal.SIGHUP)
    while running().get("agg/Worker.1", second["agg/Worker.1"]) == second["agg/Worker.1"]:
        assert machine.answers(urls[0], "/health") == 200, "one after the other"
    machine.until(lambda: len(running()) == 3)
    third = running()
    assert third["agg/ingress.0"] == first["agg/ingress.0"]
    assert not {third["agg/Worker.0"], third["agg/Worker.1"]} & set(second.values())
    stream.read()
    assert (stream.finish, stream.error) == ("stop", None)
    assert text in stream.text

    # other settings of the door: it keeps its socket, and so nobody is refused
    write("Worker.context-length=1000", "Frontend.body-limit-mb=1")
    fourth = reloaded("agg/ingress.0", 2)
    assert fourth.keys() == {"agg/Worker.0", "agg/ingress.0"}
    assert fourth["agg/Worker.0"] == third["agg/Worker.0"]
    assert fourth["agg/ingress.0"] != third["agg/ingress.0"]
    assert "hello" in machine.chat(urls[0], "hello")

    # another port
    write("Worker.context-length=1000", port=ports[1])
    fifth = reloaded("agg/ingress.0", 2)
    assert fifth["agg/Worker.0"] == third["agg/Worker.0"]
    assert machine.free(urls[0])
    assert "hello" in machine.chat(urls[1], "hello")
    assert machine.raw("GET", "/v1/status")[1]["graphs"][0]["urls"] == [f"http://localhost:{ports[1]}"]
    assert [row["last_error"] for row in machine.ps()] == [""] * 3


@together
def test_a_foreground_command_reads_its_file_again(machine: Any) -> None:
    config = machine.folder / "mine.yaml"

    def write(speed: int) -> None:
        worker = f"{{engine: mocker, model: sample, engine_args: {{speedup_ratio: {speed}}}}}"
        config.write_text(f"graph: graphs.agg:Frontend\nWorker: {worker}\n")

    def pids() -> dict[str, int]:
        return {row["component"]: row["pid"] for row in machine.ps()}

    write(5)
    command = machine.start("dynamo", "serve", "-f", "mine.yaml", "--port", 0)
    url = command.ready()
    before = pids()
    command.send(signal.SIGHUP)
    machine.until(lambda: "graph agg is unchanged" in command.err)
    config.write_text("graph: graphs.agg:Frontend\nWorker: {speed: 1}\n")
    command.send(signal.SIGHUP)
    machine.until(lambda: "nothing reloaded" in command.err)
    assert "speed" in machine.run("dynamo", "reload").mistake()
    assert pids() == before
    write(9)
    command.send(signal.SIGHUP)
    machine.until(lambda: pids()["Worker"] != before["Worker"] and machine.row("Worker")["state"] == "Ready")
    command.tree()
    assert {name for name, pid in pids().items() if pid == before[name]} == {"Processor", "Frontend"}
    machine.until(lambda: machine.serves(url))
    machine.chat(url, "hello", max_tokens=3)
    write(5)
    assert machine.run("dynamo", "reload").code == 0
    machine.until(lambda: machine.row("Worker")["state"] == "Ready")
    command.tree()


@together
def test_a_command_without_a_file_has_nothing_to_reload(machine: Any) -> None:
    command = machine.start("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port", 0)
    url = command.ready()
    before = {row["pid"] for row in machine.ps()}
    command.send(signal.SIGHUP)
    machine.until(lambda: "SIGHUP: nothing to reload" in command.err)
    assert "has a file to read again" in machine.run("dynamo", "reload").mistake()
    assert "hello" in machine.chat(url, "hello")
    assert {row["pid"] for row in machine.ps()} == before


@together
def test_paths_of_a_handed_over_graph_are_the_callers(machine: Any) -> None:
    from dynamod.preprocess.locate import locate

    caller, elsewhere = machine.folder / "caller", machine.folder / "elsewhere"
    caller.mkdir()
    elsewhere.mkdir()
    shutil.copytree(locate("sample"), caller / "mine")
    (caller / "keys").write_text("secret\n")
    daemon = machine.start("dynamod", cwd=elsewhere)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    words = ("--Worker.model=mine", "--Frontend.api-key-file=keys", "--port", 0)
    handed = machine.run("dynamo", "serve", *ECHO, *words, "--detach", cwd=caller)
    assert handed.code == 0, handed.err
    url = handed.out.split()[-1]
    # All processes are Ready a moment before the ingress has loaded the model: a graph is ready after both.
    machine.until(lambda: machine.raw("GET", "/v1/status")[1]["graphs"][0]["ready"])
    daemon.tree()
    assert machine.ask(url, "/v1/models")[0] == 401


def test_the_control_socket_is_for_the_group(machine: Any) -> None:
    old = os.umask(0o077)
    try:
        daemon = machine.start("dynamod")
    finally:
        os.umask(old)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    assert stat.S_IMODE(machine.socket.stat().st_mode) == 0o660


@together
def test_logs_in_the_folder_of_the_service_outlive_it(machine: Any) -> None:
    configure(machine, one="100")
    folder = machine.folder / "logs"
    folder.mkdir(mode=0o750)
    for count in (1, 2):
        daemon = machine.start("dynamod", "-c", "d.yaml", LOGS_DIRECTORY=f"{folder}:/nowhere")
        machine.until(all_ready(machine, "one"))
        lines = machine.run("dynamo", "logs", "one/Worker").out.splitlines()
        assert sum("engine echo_full serves model" in line for line in lines) == count
        daemon.end(signal.SIGTERM)
    file = folder / "one/Worker.0.log"
    assert file.read_text().splitlines() == lines + file.read_text().splitlines()[len(lines) :]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "graph one started" in (folder / "dynamod.log").read_text()


IGNORED = ["env", "--ignore-signal=HUP", "--ignore-signal=INT", "--ignore-signal=QUIT"]


def ignored_signals(pid: int) -> set[signal.Signals]:
    text = Path(f"/proc/{pid}/status").read_text()
    mask = int(text.partition("SigIgn:")[2].split()[0], 16)
    return {one for one in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if mask & 1 << (one - 1)}


@together
def test_a_service_started_with_ignored_signals_reloads_and_its_components_have_default_signals(machine: Any) -> None:
    configure(machine, one="100")
    daemon = machine.start("dynamod", "--config", "d.yaml", "--socket", machine.socket, prefix=IGNORED)
    machine.until(all_ready(machine, "one"))
    daemon.tree()
    assert not [row["process"] for row in machine.ps() if ignored_signals(row["pid"])]
    configure(machine, two="100")
    daemon.send(signal.SIGHUP)
    machine.until(lambda: names(machine) == ["two"])
