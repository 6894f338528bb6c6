"""Keys that are given on a command line: no process of the session shows them to other users."""

import http.client
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

KEY, OTHER = "sk-very-secret-4711", "sk-other-secret-0815"


def status(url: str, key: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        return connection.getresponse().status
    finally:
        connection.close()


def command_lines() -> list[str]:
    """Of all processes of the machine."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            pass  # it has ended
    return found


RUN = ("in=http", "out=echo_full", "--model-name", "m", "--http-port", "0")
SERVE = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
COMMANDS = [
    ("dynamo-run", *RUN, "--api-key", f"{KEY},{OTHER}"),
    ("dynamo", "run", *RUN, f"--api-key={KEY},{OTHER}", "-v"),
    ("dynamo.frontend", "--http-port", "0", "--api-key", f"{KEY},{OTHER}"),
    ("dynamo", *SERVE, f"--Frontend.api_keys={KEY},{OTHER}"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=["dynamo-run", "dynamo run", "frontend", "serve"])
def test_no_process_shows_the_key(machine: Any, words: tuple[str, ...]) -> None:
    command = machine.start(*words, fresh=True)
    url = command.ready()
    lines = command_lines()
    assert [line for line in lines if KEY in line or OTHER in line] == []
    assert any(re.fullmatch(r"dynamod \S+/ingress\.0 *", line) for line in lines), "the title of a forked process"
    shown = [line for line in lines if "*" * len(f"{KEY},{OTHER}") in line]
    assert len(shown) == 2, "the command, and the daemon that it has forked"
    assert [status(url, key) for key in (KEY, OTHER, "", "wrong")] == [200, 200, 401, 401]
    machine.run("dynamo", "restart", "Frontend")
    assert [line for line in command_lines() if KEY in line] == []
    assert status(url, KEY) == 200
    assert KEY not in command.out + command.err


def test_a_key_from_a_file_or_a_variable(machine: Any) -> None:
    file = machine.folder / "keys"
    file.write_text(f"# ours\n{KEY}\n")
    file.chmod(0o602)
    refused = machine.run("dynamo-run", *RUN, "--api-key-file", file).mistake()
    assert f"every user may write the key file {file} (mode 0602)" in refused
    file.chmod(0o604)
    command = machine.start("dynamo-run", *RUN, "--api-key-file", "keys", DYN_API_KEYS=OTHER)
    url = command.ready()
    assert [status(url, key) for key in (KEY, OTHER, "")] == [200, 200, 401]
    machine.until(lambda: "every user may read the key file" in command.out + command.err)
    command.end()
    file.chmod(0o600)
    command = machine.start("dynamo-run", *RUN, "--api-key-file", "keys")
    assert [status(command.ready(), key) for key in (KEY, OTHER, "")] == [200, 401, 401]
    assert "may read the key file" not in command.out + command.err
