"""Workers with a Python interpreter of their own: a second environment that is made here."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dynamod import __version__

from ..environments import environment

ROOT = Path(__file__).parents[2]
CONFIG = """\
graph: graphs.agg:Frontend
Frontend: {{port: {port}}}
Worker:
  engine: echo_core
  model: sample
  ServiceArgs: {{python: {python}}}
"""


def program(row: dict[str, Any]) -> str:
    """What runs there; empty when it has just ended."""
    try:
        return Path(f"/proc/{row['pid']}/cmdline").read_text().partition("\0")[0]
    except FileNotFoundError:
        return ""


def ready(machine: Any) -> bool:
    return [row["state"] for row in machine.ps("Worker")] == ["Ready"]


def test_a_worker_with_its_own_interpreter_is_started_restarted_and_reloaded(machine: Any) -> None:
    first, second = (environment(machine.folder / name) for name in ("first", "second"))
    port, config = machine.port(), machine.folder / "own.yaml"
    config.write_text(CONFIG.format(port=port, python="first/bin/python"))
    command = machine.start("dynamo", "serve", "-f", config)
    url = command.ready()
    before = machine.row("Worker")
    assert program(before) == str(first)
    assert program(machine.row("Frontend")) != str(first)
    path = dict(line.split("=", 1) for line in Path(f"/proc/{before['pid']}/environ").read_text().split("\0") if line)
    assert path["PATH"].startswith(f"{first.parent}{os.pathsep}")
    assert machine.chat(url, "hello there")
    os.kill(before["pid"], signal.SIGKILL)
    # One row: the state of the dead worker and the counter of a later moment fit each other in no answer.
    machine.until(lambda: [(row["state"], row["restarts"]) for row in machine.ps("Worker")] == [("Ready", 1)])
    assert program(machine.row("Worker")) == str(first)

    config.write_text(CONFIG.format(port=port, python=second))
    assert "Worker.python" in machine.run("dynamo", "reload", "-f", config, "--dry-run").out
    assert machine.run("dynamo", "reload", "-f", config).code == 0
    machine.until(lambda: ready(machine) and program(machine.row("Worker")) == str(second))
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello there")


def test_dynamo_run_with_an_interpreter_that_becomes_another_version(machine: Any) -> None:
    python = environment(machine.folder / "venv")
    words = ("in=http", "out=echo_core", "sample", "--http-port", 0, "--python", "venv/bin/python")
    command = machine.start("dynamo-run", *words, PYTHONPATH="")
    url = command.ready()
    machine.until(lambda: machine.serves(url))
    row = machine.row("Worker")
    assert program(row) == str(python)
    [paths] = python.parents[1].glob("lib/*/site-packages/others.pth")
    paths.write_text(f"{paths.read_text()}import dynamod.message.protocol as p; p.PROTOCOL = 1\n")
    os.kill(row["pid"], signal.SIGKILL)
    said = f"with protocol 1; install {ROOT} where its interpreter is"
    machine.until(lambda: said in machine.row("Worker")["last_error"])
    assert f"is dynamod {__version__}" in machine.row("Worker")["last_error"]


@pytest.mark.parametrize(("name", "says"), [("nothere", "No such file"), ("empty/bin/python", "No module named")])
def test_a_wrong_interpreter_is_one_line_and_nothing_is_left(machine: Any, name: str, says: str) -> None:
    environment(machine.folder / "empty", [])
    (machine.folder / "own.yaml").write_text(CONFIG.format(port=0, python=f"./{name}"))
    for words in (
        ("dynamo-run", "in=http", "out=echo_core", "sample", "--python", f"./{name}", "--http-port", 0),
        ("dynamo", "serve", "-f", "own.yaml"),
    ):
        line = machine.run(*words).mistake()
        assert f"the interpreter ./{name} (--python, ServiceArgs.python)" in line
        assert says in line
        assert f"{name} -m pip install {ROOT}" in line
        machine.until(lambda: not machine.find_daemons())


def test_mistakes_with_interpreters(machine: Any) -> None:
    line = machine.run("dynamo-run", "in=http", "out=auto", "--python", "x").mistake()
    assert "--python belongs to the worker" in line
    words = ("serve", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Worker.ServiceArgs.placement=ingress")
    line = machine.run("dynamo", *words, "--Worker.ServiceArgs.python=/usr/bin/python3").mistake()
    assert "Worker: python: a service in the ingress process" in line
    graph = machine.run("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.ServiceArgs.python=x", "--dry-run").out
    assert json.loads(graph.partition("\n")[2].partition("\n\n")[0])["Worker"]["ServiceArgs"]["python"] == "x"
