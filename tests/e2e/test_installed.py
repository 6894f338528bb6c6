"""The package is replaced beneath a daemon that runs from it. What serves keeps the release that the daemon has.

Takes about 50 s on two busy cores: two environments are filled, and all modules are compiled in each of them. With pip
it takes as long again, and is marked slow.
"""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from dynamod import __version__

from ..wheels import Installed, changed, wheel
from .together import together

GRAPH = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
GRAPH += ("--Worker.ServiceArgs.workers=2",)
MARK = """
import os as _os
if _marks := _os.environ.get("DM_MARKS"):
    with open(_marks, "a") as _file:
        _file.write(f"{_os.getpid()} {__name__}\\n")
"""


def newer(name: str, text: str) -> str:
    """Each module writes down that a process has imported it."""
    return text + MARK


def broken(_name: str, text: str) -> str:
    """No module can be imported."""
    return f"raise ImportError('half installed')\n{text}"


WORDS = " ".join(f"word{number}" for number in range(150))


def spread(machine: Any) -> list[int]:
    """Process ids of the workers once they are ready, after those of earlier ones have gone."""
    machine.until(lambda: all(row["state"] == "Ready" for row in machine.ps()), what="all ready")
    return sorted(row["pid"] for row in machine.ps("Worker"))


def kill(machine: Any, component: str) -> None:
    """Kill one process of a component, and wait until another one serves."""
    pid = machine.ps(component)[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    machine.until(lambda: machine.ps(component) and pid not in [row["pid"] for row in machine.ps(component)])
    spread(machine)


def served(machine: Any, installed: Installed, *words: str) -> tuple[Any, str, Path]:
    """A daemon of the installed package with a graph of two workers, its URL, and the file of the modules' marks."""
    marks = machine.folder / "marks"
    machine.python = str(installed.python)
    machine.env |= {"PYTHONPATH": "", "DM_MARKS": str(marks), "DYN_TOKEN_ECHO_DELAY_MS": "25"}
    daemon = machine.start("dynamod", "--socket", machine.socket, "--state-dir", machine.folder / "state")
    machine.until(lambda: machine.raw_status() == daemon.pid)
    handed = machine.run("dynamo", *GRAPH, *words, "--detach", seconds=60)
    assert handed.code == 0, handed.err
    assert len(spread(machine)) == 2
    daemon.tree()
    url = re.search(r"http://localhost:\d+", handed.out)
    assert url is not None, handed.out
    return daemon, url[0], marks


def intact(streams: list[Any]) -> str:
    """The text that all streams have ended with."""
    read = [stream.read() for stream in streams]
    assert [(one.done, one.error) for one in read] == [(True, None)] * len(streams)
    (text,) = {one.text for one in read}
    assert WORDS in text
    return str(text)


def migrations(machine: Any, url: str) -> int:
    """Answers that have continued at another worker."""
    lines = machine.ask(url, "/metrics")[1].splitlines()
    found = [line for line in lines if "migration_duration_seconds_count" in line and 'outcome="success"' in line]
    return round(sum(float(line.rpartition(" ")[2]) for line in found))


def snapshots(machine: Any) -> list[Path]:
    return list(machine.folder.glob("d.sock.d/*/code"))


@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.slow)])
@together
def test_another_release_beneath_a_daemon_changes_nothing_until_it_is_restarted(machine: Any, installer: str) -> None:
    installed = Installed(machine.folder / "env")
    installed.uv(wheel())
    daemon, url, marks = served(machine, installed)
    (snapshot,) = snapshots(machine)
    streams = [machine.stream(url, WORDS) for _ in range(4)]

    getattr(installed, installer)(changed("0.2.1", newer))
    assert "0.2.1" in machine.run("dynamo", "--version").out
    kill(machine, "Worker")
    scaled = machine.run("dynamo", "scale", "Worker", "3")
    assert scaled.code == 0, scaled.err
    machine.until(lambda: len(machine.ps("Worker")) == 3)
    spread(machine)
    restarted = machine.run("dynamo", "restart", "Worker", seconds=60)
    assert restarted.code == 0, restarted.err
    whole = intact(streams)
    assert migrations(machine, url) > 0 or installer == "pip"  # which takes longer than the streams
    kill(machine, "Frontend")
    assert machine.chat(url, WORDS) == whole
    status = machine.run("dynamo", "status")
    assert status.code == 0, status.out
    assert f"runs dynamod {__version__}, this command is 0.2.1" in machine.run("dynamo", "doctor").out
    daemon.tree()
    ours = {pid.pid for pid in daemon.seen}
    assert {int(line.split()[0]) for line in marks.read_text().splitlines()} & ours == set()

    assert daemon.end(signal.SIGTERM, 30).code == 0
    assert not snapshot.exists()
    again = machine.start("dynamod", "--socket", machine.socket, "--state-dir", machine.folder / "state")
    machine.until(lambda: machine.raw_status() == again.pid)
    assert machine.raw("GET", "/v1/status")[1]["version"] == "0.2.1"
    spread(machine)
    again.tree()
    new = {int(line.split()[0]) for line in marks.read_text().splitlines()}
    assert {row["pid"] for row in machine.ps()} <= new, "all run the new release"


@together
def test_a_release_that_is_half_installed_takes_nothing_down(machine: Any) -> None:
    """No module of the package can be imported where it is installed; the workers' environment is another one."""
    installed, other = Installed(machine.folder / "env"), Installed(machine.folder / "other")
    for one in (installed, other):
        one.uv(wheel())
    daemon, url, _ = served(machine, installed, f"--Worker.ServiceArgs.python={other.python}")
    streams = [machine.stream(url, WORDS) for _ in range(4)]
    for one in (installed, other):
        one.uv(changed("0.2.2", broken))
    assert "half installed" in machine.run("dynamo", "status").err
    kill(machine, "Worker")
    status, _ = machine.raw("POST", "/v1/scale", {"component": "Worker", "replicas": 3})
    assert status == 200
    machine.until(lambda: len(machine.ps("Worker")) == 3)
    spread(machine)
    status, _ = machine.raw("POST", "/v1/restart", {"component": "Worker"}, seconds=60)
    assert status == 200
    whole = intact(streams)
    assert migrations(machine, url) > 0
    kill(machine, "Frontend")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    refused, text = machine.ask(url, "/v1/chat/completions", {**_chat(), "response_format": form})
    assert refused == 400, text  # modules that nothing before has needed are imported: the echo engine keeps to no form
    assert machine.chat(url, WORDS) == whole
    daemon.tree()


def _chat() -> dict[str, Any]:
    return {"model": "sample", "messages": [{"role": "user", "content": "hello"}]}
