"""Commands of this release beside a daemon of an older one, and files that an older one has kept."""

import json
import sqlite3
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from .old import BEFORE_PROTOCOLS, checkout, environment
from .together import together

FILE = """
import asyncio
from dynamo.runtime import dynamo_worker

@dynamo_worker()
async def worker(runtime):
    async def generate(request):
        yield 1

    endpoint = runtime.namespace("mine").component("backend").endpoint("generate")
    await endpoint.serve_endpoint(generate)

asyncio.run(worker())
"""


def old_daemon(machine: Any, *argv: object) -> Any:
    """A service of the older release, with a graph of its own."""
    env = environment(BEFORE_PROTOCOLS)
    state = machine.folder / "state"
    daemon = machine.start("dynamod", "--socket", machine.socket, "--state-dir", state, *argv, **env)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    words = ("graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
    root = checkout(BEFORE_PROTOCOLS).name
    handed = machine.start("dynamo", "serve", *words, "--detach", cwd=root, **env).wait(20)
    assert handed.code == 0, handed.err
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"] * 3)
    daemon.tree()
    return daemon


@pytest.mark.parametrize(
    "words",
    [
        "status",
        "ps",
        "top --once",
        "logs -n 2",
        "inspect Processor",
        "doctor",
        "restart Worker",
        "scale Worker 2",
        "drain Worker",
        "serve graphs.agg:Frontend -f configs/agg.yaml --Worker.engine=echo_core --Frontend.port=0",
        "serve graphs.agg:Frontend -f configs/agg.yaml --Worker.engine=echo_core --Frontend.port=0 --detach",
        "reload --dry-run -f configs/agg.yaml",
    ],
)
def test_a_command_beside_an_older_daemon_says_what_to_do_and_changes_nothing(old: Any, words: str) -> None:
    before = [(row["process"], row["pid"], row["state"]) for row in old.ps()]
    result = old.run("dynamo", *words.split())
    assert result.code not in (0, None)
    text = result.out + result.err
    assert "Traceback" not in text
    assert "speaks protocol 1, and dynamod" in text
    assert "dynamo stop" in text
    assert [(row["process"], row["pid"], row["state"]) for row in old.ps()] == before


def test_a_python_file_beside_an_older_daemon_ends_at_once_with_the_reason(old: Any) -> None:
    file = old.script(FILE).wait(20)
    assert file.code not in (0, None)
    assert "speaks protocol 1, and dynamod" in file.err
    assert "dynamo stop" in file.err.strip().splitlines()[-1], "its last line says what to do"


@pytest.fixture(scope="module")
def old(shared: Any) -> Any:
    """A machine with a daemon of the older release."""
    old_daemon(shared)
    return shared


@together
def test_stop_ends_an_older_daemon_and_its_graphs_come_back_with_this_release(machine: Any) -> None:
    daemon = old_daemon(machine)
    stopped = machine.run("dynamo", "stop")
    assert stopped.code == 0, stopped.err
    daemon.wait()
    state = machine.folder / "state"
    assert isinstance(json.loads((state / "graphs.json").read_text()), list)
    again = machine.start("dynamod", "--socket", machine.socket, "--state-dir", state)
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"] * 3)
    again.tree()
    status = machine.run("dynamo", "status")
    assert status.code == 0, status.out
    kept = json.loads((state / "graphs.json").read_text())
    assert (kept["protocol"], [entry["name"] for entry in kept["graphs"]]) == (2, ["agg"])


@together
def test_graphs_of_a_newer_release_are_refused_loudly_and_kept(machine: Any) -> None:
    state = machine.folder / "state"
    state.mkdir()
    newer = json.dumps({"protocol": 99, "graphs": [{"name": "agg", "graph": {"from": "the future"}}]})
    (state / "graphs.json").write_text(newer)
    machine.start("dynamod", "--socket", machine.socket, "--state-dir", state)
    machine.until(lambda: machine.raw_status())
    for command in ("status", "doctor"):
        result = machine.run("dynamo", command)
        assert result.code not in (0, None)
        assert "graphs.json" in result.out + result.err
        assert "protocol 99" in result.out + result.err
    assert any(path.read_text() == newer for path in state.iterdir()), "nothing is lost"


@pytest.mark.parametrize("setting", ["responses_dir", "batches_dir"])
@together
def test_what_clients_have_sent_to_a_newer_release_is_refused_loudly_and_kept(machine: Any, setting: str) -> None:
    kept = machine.folder / "kept"
    kept.mkdir(mode=0o700)
    (kept / "format").write_text("99\n")
    with closing(sqlite3.connect(kept / "responses.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
    service = machine.start("dynamod", "--socket", machine.socket, "--state-dir", machine.folder / "state")
    machine.until(lambda: machine.raw_status())
    words = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
    machine.run("dynamo", *words, f"--Frontend.{setting}={kept}", "--detach", seconds=60)
    service.tree()

    def told(command: str) -> bool:
        result = machine.run("dynamo", command)
        return result.code not in (0, None) and f"{setting}: {kept}" in result.out + result.err

    for command in ("status", "doctor"):
        machine.until(partial(told, command), what=f"dynamo {command} says so")
        text = machine.run("dynamo", command).out
        assert "has format 99, and this release reads 1" in text
        assert "start the release that wrote it" in text
    assert (kept / "format").read_text() == "99\n"
