"""Commands in several terminals are sessions of one daemon: they find each other without a broker, in any order."""

import json
import os
import signal
import socket
import stat
import time
from typing import Any

import pytest

from .python_files import OWN
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
    daemon = machine.raw("GET", "/v1/status")[1]["pid"]
    assert daemon == machine.daemon().pid != commands[first].pid
    commands[second] = start(second)
    commands[second].ready()
    machine.until(lambda: machine.serves(url))
    answer = machine.chat(url, "hello")
    assert "hello" in answer

    # a third shell sees both
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"] * 3)
    rows = {row["component"]: row for row in machine.ps()}
    ends = {name: int(row["session"].rpartition(" ")[2]) for name, row in rows.items()}
    assert ends == {
        "Worker": commands["worker"].pid,
        "Processor": commands["frontend"].pid,
        "Frontend": commands["frontend"].pid,
    }
    text = machine.run("dynamo", "ps").out
    assert all(name in text for name in rows)
    assert f"pid {commands[second].pid}" in text
    assert f"pid {commands[second].pid}" in machine.run("dynamo", "status").out

    # end the command that has started the daemon: the other does not notice
    commands[first].end()
    assert machine.raw("GET", "/v1/status")[1]["pid"] == daemon
    machine.until(lambda: machine.answers(url, "/health") == (503 if first == "worker" else 0))
    commands[first] = start(first)
    commands[first].ready()
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello") == answer

    # the same the other way round, without a farewell
    commands[second].end(signal.SIGKILL)
    assert machine.raw_status() == daemon
    commands[second] = start(second)
    commands[second].ready()
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello") == answer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGHUP])
@together
def test_a_stream_survives_the_end_of_the_command_that_started_the_daemon(machine: Any, number: int) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "10"
    first = _Terminal(machine, "dynamo-run", "in=http", "out=auto", "--http-port", machine.port())
    machine.until(lambda: len(machine.ps()) == 2)
    worker = machine.start("dynamo-run", *WORKER)
    port = machine.port()
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", port)
    url = front.ready()
    worker.ready()
    machine.until(lambda: machine.serves(url))
    daemon = machine.daemon()
    text = " ".join(map(str, range(60)))
    stream = machine.stream(url, text)
    first.close(number)
    machine.until(lambda: len(machine.ps()) == 3, what="only its own graph ends")
    stream.read()
    assert (stream.finish, stream.error) == ("stop", None)
    assert text in stream.text
    assert text in machine.chat(url, text)
    assert {row["state"] for row in machine.ps()} == {"Ready"}
    assert {row["restarts"] for row in machine.ps()} == {0}
    assert machine.daemon() == daemon


@together
def test_a_stopped_file_holds_up_nobody(machine: Any) -> None:
    file = machine.script(OWN, name="own")
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"])
    file.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert [row["process"] for row in machine.ps()] == ["python/own.0"]
        assert time.monotonic() - began < 1.0
        with socket.socket(socket.AF_UNIX) as joining:  # what every new process does first
            joining.settimeout(1.0)
            joining.connect(f"{machine.socket}.link")
            assert joining.recv(8).startswith(b"dynamod")
        machine.until(lambda: machine.ps()[0]["state"] == "Silent", 5.0)
        front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
        front.ready()
        front.end()
    finally:
        file.send(signal.SIGCONT)
    machine.until(lambda: machine.ps()[0]["state"] == "Ready")
    assert file.end().code == 0


@together
def test_commands_reach_all_sessions(machine: Any) -> None:
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
    assert 'process="dynamod"' in metrics
    logs = machine.run("dynamo", "logs", "Worker").out
    assert "engine echo_core serves model sample" in logs
    assert "engine echo_core serves model sample" in worker.err
    assert "engine echo_core" not in front.err, "each terminal shows its own graph"

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

    done = machine.run("dynamo", "drain", "Worker", "--force")
    assert done.code == 0, done.err
    machine.until(lambda: machine.answers(url, "/health") == 503)
    machine.until(lambda: not machine.ps("Worker"))

    unknown = machine.run("dynamo", "restart", "Wroker")
    assert unknown.code == 1
    assert "no component 'Wroker'" in unknown.mistake()

    # dynamo stop ends every command, which says why
    assert machine.run("dynamo", "stop").code == 0
    for command in (front, worker):
        result = command.wait(10)
        assert (result.code, result.err.count("the daemon of this machine was stopped")) == (0, 1)
        assert "Traceback" not in result.err


@pytest.mark.parametrize("how", ["stop", "SIGTERM to the daemon", "SIGINT"])
@together
def test_a_daemon_ends_its_graphs_once_however_it_is_ended(machine: Any, how: str) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="10")
    stream = machine.stream(command.ready(), " ".join(f"word{n}" for n in range(30)))
    if how == "stop":
        assert machine.run("dynamo", "stop").code == 0
    elif how == "SIGINT":
        command.send(signal.SIGINT)
    else:
        os.kill(machine.daemon().pid, signal.SIGTERM)
    stream.read()
    assert stream.finish == "stop" or stream.error is not None, "a client hears how its response ended"
    result = command.wait(10)
    assert result.code == 0
    assert "did not end" not in result.err
    assert "Traceback" not in result.err


@together
def test_the_clocks_of_a_session_are_those_of_its_command(machine: Any) -> None:
    machine.start("dynamo-run", *WORKER).ready()
    wrong = machine.start("dynamo-run", *WORKER, DYNAMOD_STALL_TIMEOUT="soon").wait(20)
    assert wrong.code == 2
    assert "DYNAMOD_STALL_TIMEOUT is 'soon'" in wrong.mistake()


@together
def test_terminals_with_the_same_words_have_names_of_their_own(machine: Any) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "1"
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    url = front.ready()
    workers = [machine.start("dynamo-run", *WORKER) for _ in range(3)]
    for worker in workers:
        worker.prints("ready\n")
    machine.until(lambda: len(machine.ps("Worker")) == 3)
    rows = {row["graph"]: row for row in machine.ps("Worker")}
    assert rows.keys() == {"run-echo_core", "run-echo_core-2", "run-echo_core-3"}
    assert len({row["session"] for row in rows.values()}) == 3
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
    machine.until(lambda: sum(worker.code == 0 for worker in workers) == 1, what="its command ends with it")
    assert sum("graph run-echo_core-3 was stopped" in worker.err for worker in workers) == 1, "and says why"

    # a name that was chosen is not changed, here or there
    chosen = machine.agg("--name", "run-frontend")
    result = chosen.wait(20)
    assert result.code not in (0, 3)
    assert "a graph 'run-frontend' runs already" in result.err.splitlines()[-1]
    handed = machine.run("dynamo", "serve", *AGG, "--name", "run-echo_core", "--detach")
    assert "a graph 'run-echo_core' runs already" in handed.mistake()


def test_a_graph_that_was_handed_over_keeps_the_daemon(machine: Any) -> None:
    first = machine.agg()
    first.ready()
    handed = machine.run("dynamo", "serve", *AGG, "--name", "stays", "--detach")
    assert handed.code == 0, handed.err
    daemon = machine.daemon()
    machine.until(lambda: {row["state"] for row in machine.ps()} == {"Ready"})
    seen = first.tree()
    first.send(signal.SIGINT)
    assert first.wait(5).code == 0
    machine.until(lambda: {row["graph"] for row in machine.ps()} == {"stays"})
    first.seen = seen - {daemon} - {pid for row in machine.ps() for pid in machine.tree(row["pid"])}
    assert machine.run("dynamo", "stop", "stays").code == 0
    machine.until(lambda: not daemon.lives, 5.0, "it ends with its last graph")
    assert not machine.socket.exists()


OLDER = """
import asyncio, sys
import dynamod
import dynamod.message.protocol
dynamod.__version__, dynamod.message.protocol.PROTOCOL = "0.0.1", 1
from pathlib import Path
from dynamod.cli.boot import Options, run
run(Options(Path(sys.argv[1])))
"""


def test_a_daemon_of_another_version_is_one_clear_line(machine: Any) -> None:
    older = machine.script(OLDER, machine.socket, name="older")
    machine.until(machine.raw_status)
    mistake = machine.agg().wait(20).mistake()
    assert "dynamod 0.0.1) speaks protocol 1" in mistake
    assert "dynamo stop" in mistake
    assert older.code is None


def test_what_is_no_daemon_is_one_clear_line(machine: Any) -> None:
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(f"{machine.socket}.link")
        foreign.listen()
        command = machine.agg()
        peer, _ = foreign.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            assert "does not speak this protocol" in command.wait(20).mistake()


def test_a_run_folder_that_cannot_be_written_is_one_clear_line(machine: Any) -> None:
    folder = machine.folder / "closed"
    folder.mkdir()
    (folder / "d.sock.d").write_text("in the way")
    mistake = machine.agg("--socket", folder / "d.sock").wait(20).mistake()
    assert "the run folder cannot be used" in mistake
    assert stat.S_ISDIR(folder.stat().st_mode)


NO_FORK = """
import os, sys
def fork():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
from dynamod.cli.main import dynamo
sys.argv = ["dynamo", "serve", *sys.argv[1:]]
dynamo()
"""


def test_a_fork_that_fails_is_one_clear_line(machine: Any) -> None:
    mistake = machine.script(NO_FORK, *AGG, name="nofork").wait(20).mistake()
    assert "cannot start a daemon: fork: Resource temporarily unavailable" in mistake


class _Terminal:
    """A command in a terminal of its own, which can be closed."""

    def __init__(self, machine: Any, command: str, *words: object) -> None:
        self._machine = machine
        self._fd, self._process = machine.terminal(command, *words)

    def close(self, number: int) -> None:
        """End it: SIGHUP as when its window is closed."""
        if number == signal.SIGHUP:
            os.close(self._fd)
        else:
            os.kill(self._process.pid, number)
        self._process.wait(10.0)
        if number != signal.SIGHUP:
            os.close(self._fd)


def _instances(machine: Any, url: str) -> list[Any]:
    found: list[Any] = json.loads(machine.ask(url, "/health")[1])["instances"]
    return found
