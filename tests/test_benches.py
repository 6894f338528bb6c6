"""Scripts of tools/bench run with the parts that they measure as these are. Nothing is measured: the work is small."""

import socket
import subprocess
import sys
from pathlib import Path

from tools.bench import sends

BENCH = Path(__file__).parents[1] / "tools/bench"


def run(script: str, *arguments: str) -> str:
    """What a script prints. It has no errors to show."""
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_layer_of_a_token_takes_the_tokens() -> None:
    rows = run("hotpath.py", "--streams", "4", "--steps", "10").splitlines()
    assert len(rows) == 8
    assert rows[-1].startswith("| together |")


def test_a_server_that_only_sends() -> None:
    with sends.started(2000.0) as (port, _), socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = b""
        while answer.count(b"data: {") < 20:
            answer += client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
