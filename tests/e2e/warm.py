"""Commands without the third of a second in which Python imports what they need.

Most tests run several (`serve`, `ps`, `scale`): what they do and how they end is asked for, not how they are loaded.
Each still is a process of its own with its arguments, its environment, its folder. The first of every kind in a run of
the tests is started as a user would, so that every kind is seen to be loaded.
"""

import atexit
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ..run_folder import Kinds

SERVER = Path(__file__).with_name("forks.py")


class Warm:
    """The process that everything is forked from; one for each process that tests, and it ends with it.

    `core`: what depends on features is imported by each command itself (`warm` of forks.py).
    """

    def __init__(self, env: Mapping[str, str], *, core: bool = False) -> None:
        own = os.path.dirname(env["DYNAMOD_SOCKET"])  # the first machine's folder, which ends before this does
        env = {name: value for name, value in env.items() if own not in value}
        self.kinds = Kinds()
        self._core = core
        self._python = self._once(env)
        self._folder = tempfile.mkdtemp(prefix="dm-warm-", dir="/tmp")
        self._path = f"{self._folder}/s.sock"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; exec(open(sys.argv[2]).read())",
                self._path,
                str(SERVER),
                "core" if core else "all",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=self._folder,
        )
        atexit.register(self.close)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def knows(self, words: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether such a command has been started as a user would; and what is read once is what it was here."""
        return not self.kinds.first(kind(words)) and self._once(env) == self._python

    def _once(self, env: Mapping[str, str]) -> dict[str, str]:
        """What is read from the environment once, when the interpreter starts or when modules are imported."""
        names = ("PYTHON", "LD_", "TZ", "LC_", "LANG", *(() if self._core else ("DYNAMOD_FEATURES",)))
        return {name: value for name, value in env.items() if name.startswith(names)}

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        out: int,
        err: int,
        *,
        stdin: int | None = None,
        session: bool = True,
    ) -> "Started":
        """Start a command whose input and output are descriptors; without one its input is empty.

        `session`: it leads a session, whose terminal its input is, if that is one.
        """
        connection = socket.socket(socket.AF_UNIX)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            connection.connect(self._path)
            name = os.path.basename(os.path.dirname(env["DYNAMOD_SOCKET"]))
            asked = {"words": list(words), "env": dict(env), "cwd": str(cwd), "name": name, "session": session}
            asked["run"] = str(self.kinds.folder)
            request = json.dumps(asked).encode()
            sent = socket.send_fds(connection, [request], [nothing if stdin is None else stdin, out, err])
            connection.sendall(request[sent:])
            connection.shutdown(socket.SHUT_WR)
            return Started(list(words), connection)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(nothing)

    def run(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path, seconds: float, text: str | None = None
    ) -> tuple[int, str, str]:
        """Exit code, stdout, stderr; `text` comes through a pipe. Raises TimeoutExpired, and then it is killed."""
        with contextlib.ExitStack() as opened:
            out, err = (opened.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            stdin = None if text is None else opened.enter_context(_pipe(text)).fileno()
            started = self.start(words, env, cwd, out.fileno(), err.fileno(), stdin=stdin, session=False)
            try:
                code = started.wait(seconds)
            except subprocess.TimeoutExpired:
                os.kill(started.pid, signal.SIGKILL)
                raise
            finally:
                started.close()
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


class Started:
    """A command that was forked there, as `subprocess.Popen` describes one."""

    def __init__(self, args: list[str], connection: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._connection = connection
        self._line = b""
        self.pid = int(self._answer(60.0))

    def _answer(self, seconds: float) -> bytes:
        """The next line. Raises TimeoutExpired."""
        end = time.monotonic() + seconds
        while not self._line.endswith(b"\n"):
            if not select.select([self._connection], [], [], max(0.0, end - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(self.args, seconds)
            byte = self._connection.recv(1)
            assert byte, f"the process that forks commands has lost {self.args}"
            self._line += byte
        line, self._line = self._line, b""
        return line

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            self.returncode = int(self._answer(timeout))
            self.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its parent, another process, has waited for it meanwhile
                os.kill(self.pid, number)

    def close(self) -> None:
        """Forget it."""
        self._connection.close()


def kind(words: Sequence[str]) -> tuple[str, ...]:
    """What decides what a command imports: its name, and what it does or where its requests come from.

    Of a user's file: the lines that import.
    """
    name, *rest = words
    if name.endswith(".py"):
        return "python", *sorted(set(re.findall(r"^ *((?:from|import) .*)", Path(name).read_text(), re.MULTILINE)))
    if name == "dynamo":
        return tuple(words[:2])
    return name, next((word.partition(":")[0] for word in rest if word.startswith("in=")), "")


def _pipe(text: str) -> IO[bytes]:
    """The end of a pipe that holds a text, whose other end is closed."""
    data = text.encode()
    assert len(data) < 1 << 16, "it would not fit into a pipe"
    end, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(data)
    return open(end, "rb", buffering=0)


_first: list[Warm] = []
_making = threading.Lock()


def warm(env: Mapping[str, str]) -> Warm:
    """The one of this process, made at the first call."""
    with _making:
        if not _first:
            _first.append(Warm(env))
    return _first[0]
