"""Scripts of tools/bench run with the parts that they measure as these are. Nothing is measured: the work is small."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench import sends

BENCH = Path(__file__).parents[1] / "tools/bench"


def run(*words: str) -> str:
    """What Python prints. It has no errors to show."""
    done = subprocess.run([sys.executable, *words], cwd=BENCH, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("script", "arguments", "lines", "last"),
    [
        ("hotpath.py", ["--streams", "4", "--steps", "10"], 8, "| together |"),
        ("index.py", [], 4, "store, per block: "),
        ("route.py", ["--workers", "4", "--seconds", "0.001"], 9, "4 workers, kv, 50 blocks shared: "),
        ("adapter.py", ["--streams", "2", "--steps", "16", "--repeat", "1"], 6, "  adapter and events: "),
        ("step_metrics.py", ["--streams", "2", "--seconds", "0.2"], 1, "2 streams, steps of "),
    ],
)
def test_a_script_measures_the_parts_as_they_are(script: str, arguments: list[str], lines: int, last: str) -> None:
    printed = run(script, *arguments).splitlines()
    assert len(printed) == lines
    assert printed[-1].startswith(last)


def test_a_decision_about_a_long_prompt() -> None:
    printed = run("-c", "import long_prompt; long_prompt.decision(800, 2)")
    assert printed.startswith("2 workers, 50 blocks: ")


def test_a_server_that_only_sends() -> None:
    with sends.started(2000.0) as (port, _), socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = b""
        while answer.count(b"data: {") < 20:
            part = client.recv(1 << 16)
            assert part, answer
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
