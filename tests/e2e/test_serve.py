"""`dynamo serve` in the foreground: what it prints, that it answers, and that it ends."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from .together import together

WORDS = " ".join(f"word{n}" for n in range(150))


def test_what_it_prints_and_answers(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="1")
    url = command.ready()
    assert "Added new chat model sample\n" in command.out
    table = """\
+------------+------------+-----------+-----------+------------------+
| MODEL TYPE | MODEL NAME | NAMESPACE | COMPONENT | ENDPOINT         |
+------------+------------+-----------+-----------+------------------+
| chat       | sample     | dynamo    | Processor | chat/completions |
+------------+------------+-----------+-----------+------------------+
"""
    assert table in command.out
    for component, process in (("Worker", "Worker.0"), ("Processor", "ingress.0"), ("Frontend", "ingress.0")):
        row = machine.row(component)
        assert row["state"] == "Ready"
        assert row["process"] == f"agg/{process}"
        cells = [cell.strip() for line in command.out.splitlines() for cell in line.split("|") if component in line]
        assert {component, row["process"], "Ready", str(row["pid"])} <= set(cells)
    answer = machine.chat(url, "hello there")
    assert "hello there" in answer
    stream = machine.stream(url, "hello there").read()
    assert (stream.text, stream.finish, stream.done, stream.error) == (answer, "stop", True, None)
    status, text = machine.ask(url, "/v1/models")
    assert status == 200
    assert '"sample"' in text
    result = command.end()
    assert result.code == 0
    assert machine.free(url)
    assert not machine.socket.exists()


def test_it_ends_within_the_bound_with_a_stream_open(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="200", deaf=True)  # as in `dynamo serve ... | head -1`
    machine.until(lambda: machine.raw_status() and machine.raw("GET", "/v1/status")[1]["ready"])
    (url,) = machine.raw("GET", "/v1/status")[1]["graphs"][0]["urls"]
    machine.until(lambda: machine.serves(url))
    stream = machine.stream(url, WORDS)
    result = command.end(signal.SIGTERM)
    assert result.code == 0
    assert "Broken" not in result.err
    assert machine.free(url)
    stream.close()


STUCK = """
import fcntl, os, sys

reader, writer = os.pipe()
fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
for number in (1, 2):
    os.dup2(writer, number)
sys.argv[0] = "dynamo"
from dynamod.cli.main import dynamo
dynamo()
"""
"""A command whose output goes into a small pipe that stays open and is never read, as behind Ctrl-S or `less`."""


@together
def test_a_reader_that_stops_reading_stops_nothing(machine: Any) -> None:
    port = machine.port()
    url = f"http://127.0.0.1:{port}"
    graph = ("-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--port", port)
    command = machine.script(STUCK, "serve", *graph, "-v", DYN_TOKEN_ECHO_DELAY_MS="0")
    machine.until(lambda: machine.raw_status() and machine.serves(url))
    for _ in range(200):
        assert "hello" in machine.chat(url, "hello")
    before = machine.row("Worker")["pid"]
    os.kill(before, signal.SIGKILL)
    machine.until(lambda: [(row["state"], row["pid"] != before) for row in machine.ps("Worker")] == [("Ready", True)])
    machine.until(lambda: machine.serves(url))
    assert "hello" in machine.chat(url, "hello")
    assert command.end(signal.SIGTERM).code == 0


@pytest.mark.parametrize(
    ("number", "wait"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 0.2), (signal.SIGINT, 0.4), (signal.SIGTERM, 0.7)]
)
def test_it_ends_within_the_bound_while_components_start(machine: Any, number: int, wait: float) -> None:
    command = machine.agg()
    machine.until(lambda: len(command.tree()) > 1)
    time.sleep(wait)
    result = command.end(number)
    assert "Traceback" not in result.err


EARLY = """
import sys

if "serve" in sys.orig_argv:
    import os, signal
    from dynamod.cli import foreground

    def on_signals(*given, ours=foreground.on_signals):
        os.write(2, b"now: Ctrl-C\\n")
        os.kill(os.getpid(), signal.SIGINT)
        ours(*given)

    foreground.on_signals = on_signals
"""
"""Ctrl-C when the event loop runs, and its signals are not the command's yet."""


IN_FORK = """
import sys

if "serve" in sys.orig_argv:
    import os, signal

    def interrupt():
        os.write(2, b"now: Ctrl-C\\n")
        os.kill(os.getpid(), signal.SIGINT)

    os.register_at_fork(after_in_parent=interrupt)
"""
"""Ctrl-C when the daemon has just been forked, in code whose exceptions Python drops."""


@pytest.mark.parametrize("hook", [EARLY, IN_FORK], ids=["before_handlers", "in_fork"])
def test_it_ends_by_a_signal_that_comes_early(machine: Any, hook: str) -> None:
    (machine.folder / "sitecustomize.py").write_text(hook)
    root = Path(__file__).parents[2]
    command = machine.agg(PYTHONPATH=os.pathsep.join(map(str, [machine.folder, root, root / "dynamod/compat"])))
    machine.until(lambda: "now: Ctrl-C" in command.err)  # the imports before it may take long on a busy machine
    result = command.wait(5)
    assert result.code in (0, 130)
    assert "Traceback" not in result.err
    command.gone(5)


def test_a_second_signal_ends_at_once(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="200")
    url = command.ready()
    stream = machine.stream(url, WORDS)
    command.send(signal.SIGINT)
    time.sleep(0.3)
    result = command.end(signal.SIGINT)
    assert result.code in (0, 130)
    assert machine.free(url)
    stream.close()


def test_a_killed_daemon_leaves_no_orphans(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="200")
    url = command.ready()
    stream = machine.stream(url, WORDS)
    assert len(command.tree()) == 4, "the command, its daemon, ingress and worker"
    daemon = machine.daemon()
    os.kill(daemon.pid, signal.SIGKILL)
    result = command.wait(5)
    assert result.code == 1
    assert [line for line in result.err.splitlines() if line.startswith("error: ")] == [
        "error: the daemon of this machine has ended (the daemon has ended), and agg with it"
    ]
    command.gone(5)
    machine.until(lambda: machine.free(url), 1)
    stream.close()
    assert machine.socket.exists()  # nobody could remove it
    again = machine.agg()  # and the next daemon takes it over
    assert machine.answers(again.ready(), "/health") == 200
    assert machine.raw("GET", "/v1/status")[1]["pid"] == machine.daemon().pid != daemon.pid
    assert [path.name for path in machine.folder.glob("d.sock.d/*")] == [str(machine.daemon().pid)]


@pytest.mark.parametrize("what", ["command", "daemon"])
def test_a_kill_while_components_start(machine: Any, what: str) -> None:
    command = machine.agg()
    machine.until(machine.ps)
    command.tree()
    os.kill(command.pid if what == "command" else machine.daemon().pid, signal.SIGKILL)
    command.wait(5)
    command.gone(5)


def test_a_killed_command_takes_its_graph_with_it_and_nothing_stays(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="200")
    url = command.ready()
    stream = machine.stream(url, WORDS)
    command.end(signal.SIGKILL)
    assert machine.free(url)
    assert not machine.socket.exists(), "the daemon that it had started ends in good order"
    stream.close()


BUSY = """
import os, time
from dynamo.sdk import service, endpoint, async_on_start

@service(dynamo={"namespace": "busy"})
class Busy:
    @endpoint()
    async def generate(self, request):
        time.sleep(600)  # a native engine that holds the interpreter
        yield "never"

    @async_on_start
    async def block(self):
        if os.environ.get("BLOCK"):
            import asyncio, subprocess
            subprocess.Popen(["sleep", "600"])
            asyncio.get_running_loop().call_later(0.7, time.sleep, 600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@together
def test_a_component_that_blocks_its_loop_ends_too(machine: Any, number: int) -> None:
    (machine.folder / "busy.py").write_text(BUSY)
    command = machine.start("dynamo", "serve", "busy:Busy", BLOCK="1")
    command.ready()
    time.sleep(1.0)
    pids = command.tree()
    assert len(pids) == 4, "the command, its daemon, the component, and what the component has started"
    command.end(number)
    assert not any(os.path.exists(f"/proc/{pid.pid}/fd/0") and pid.lives for pid in pids)


def test_names_of_graphs(machine: Any) -> None:
    for name in ("a/b", "a b"):
        assert f"cannot be called '{name}'" in machine.agg("--name", name).wait(20).err.splitlines()[-1]
    long = "x" * 64  # with it the path of a worker's socket would be too long
    command = machine.agg("--name", long)
    url = command.ready()
    assert "hello" in machine.chat(url, "hello")
    assert machine.row("Worker")["process"] == f"{long}/Worker.0"


def test_a_graph_without_a_file_has_its_own_config(machine: Any) -> None:
    command = machine.start("dynamo", "serve", "graphs.agg_router:Frontend", "--Frontend.port=0")
    url = command.ready()
    assert command.err.count("configs/agg_router.yaml is used, the config of this graph; -f names another\n") == 1
    assert len(machine.ps("Worker")) == 4
    assert machine.chat(url, "hello", max_tokens=3)
    command.end()
