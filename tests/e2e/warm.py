"""Commands that end by themselves, without the third of a second in which Python imports what they need.

Most tests run several (`ps`, `logs`, `scale`): what they print and how they end is asked for, not how they are loaded.
Each still is a process of its own with its arguments, its environment, its folder. The first of every kind is started
as a user would, so that every kind is seen to be loaded.
"""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = Path(__file__).with_name("forks.py")


class Warm:
    """The process that everything is forked from; one for a run of the tests, and it ends with it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.python = python(env)
        self.seen: set[tuple[str, ...]] = set()
        self._folder = tempfile.mkdtemp(prefix="dm-warm-", dir="/tmp")
        own = os.path.dirname(env["DYNAMOD_SOCKET"])  # the first machine's folder, which ends before this does
        self._path = f"{self._folder}/s.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER.read_text(), self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in env.items() if own not in value},
            cwd=self._folder,
        )
        atexit.register(self.close)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def knows(self, words: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether such a command has been started as a user would; and what Python is told is what it was told here."""
        kind = tuple(words[:2])
        known = kind in self.seen
        self.seen.add(kind)
        return known and python(env) == self.python

    def run(self, words: Sequence[str], env: Mapping[str, str], cwd: Path, seconds: float) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. Raises TimeoutExpired, and then it is killed."""
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            connection.settimeout(seconds)
            connection.connect(self._path)
            request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
            sent = socket.send_fds(connection, [request], [out.fileno(), err.fileno()])
            connection.sendall(request[sent:])
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile() as answer:
                pid = int(answer.readline())
                try:
                    code = int(answer.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(list(words), seconds) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return code, texts[0], texts[1]

    def close(self) -> None:
        """End it: it hears that nobody is there any more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def python(env: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter itself reads from the environment, once."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


_first: list[Warm] = []
_making = threading.Lock()


def warm(env: Mapping[str, str]) -> Warm:
    """The one of this run, made at the first call."""
    with _making:
        if not _first:
            _first.append(Warm(env))
    return _first[0]
