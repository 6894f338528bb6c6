"""Component processes that a forked daemon starts later on: forked as its first ones are, and no new interpreters.

A daemon forks its first processes before its loop runs (dynamod/daemon/spawn.py). Each that it starts again, or that
scaling adds, is a new interpreter with a quarter of a second of imports. A daemon that forks.py has forked asks its
nursery for them: a child that is forked before the daemon's loop runs, and that forks one process per request. `tree`
of processes.py passes by the nursery and counts what it has forked. A process that would read other variables at its
start is a new interpreter, and so is each that a daemon with an interpreter of its own starts.
"""

import io
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from dynamod.cli import attach
from dynamod.daemon import spawn
from dynamod.daemon.forked import Forked
from dynamod.runtime.host import live

HOST = ["-m", "dynamod.runtime.host"]


def install(name: str, *, daemon: bool) -> None:
    """Give a nursery to the daemon that this process is, or to the one that it forks. `name`: of its processes."""
    if daemon:
        _start(name)
        return
    begin = attach._daemon

    def begin_with_nursery(path: Any, first: Any, kinds: Any) -> int:
        _start(name)
        return begin(path, first, kinds)

    attach._daemon = begin_with_nursery


def _start(name: str) -> None:
    popen = Nursery(name).popen
    spawn.subprocess = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)  # type: ignore[attr-defined]


def once(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter reads when it starts, but for the buffers of its output: a fork has none either."""
    names = ("PYTHON", "DYNAMOD_FEATURES", "LD_", "TZ", "LC_", "LANG")
    return {key: value for key, value in env.items() if key.startswith(names) and key != "PYTHONUNBUFFERED"}


class Nursery:
    """The daemon's side."""

    def __init__(self, name: str) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._once = once(os.environ)
        self._program = Forked(partial(serve, theirs, name), dict(os.environ), keep=theirs.fileno())
        theirs.close()

    def popen(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: str | None, pass_fds: Any, **rest: Any
    ) -> Any:
        """As `subprocess.Popen`, for what `dynamod.daemon.spawn` starts."""
        if [*words[:3]] == [sys.executable, *HOST] and once(env) == self._once:
            return Born(*self._fork(dict(env), cwd or os.getcwd(), pass_fds[0]))
        return subprocess.Popen(words, env=env, cwd=cwd, pass_fds=pass_fds, **rest)

    def _fork(self, env: dict[str, str], folder: str, sock: int) -> tuple[int, list[int]]:
        socket.send_fds(self._sock, [json.dumps([env, folder]).encode()], [sock])
        answer, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 3)
        answered = json.loads(answer)
        if isinstance(answered, str):
            raise FileNotFoundError(answered)
        return answered, fds


class Born:
    """A process that was forked there, as `subprocess.Popen` describes one."""

    def __init__(self, pid: int, fds: Sequence[int]) -> None:
        self.pid = pid
        out, err, self._code_pipe = fds
        self.stdout, self.stderr = io.FileIO(out), io.FileIO(err)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._look(0)

    def wait(self) -> int:
        """Wait for the exit code."""
        code = self._look(None)
        assert code is not None
        return code

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, 9)

    def _look(self, milliseconds: int | None) -> int | None:
        if self._code is None:
            poll = select.poll()
            poll.register(self._code_pipe, select.POLLIN)
            if poll.poll(milliseconds):
                self._code = int(os.read(self._code_pipe, 16) or b"-9")  # its nursery was killed with it
                os.close(self._code_pipe)
        return self._code


def serve(sock: socket.socket, name: str) -> None:
    """The nursery's side: until the daemon has gone."""
    _be_called(f"{name}~")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    living: dict[int, tuple[Forked, int]] = {}  # by the descriptor that tells of the end; where its code goes
    ended: dict[int, Forked] = {}  # by where the code has gone: until it is read the process number stays taken
    while True:
        for ready, _ in poll.poll():
            if ready == sock.fileno():
                request, fds, _, _ = socket.recv_fds(sock, 1 << 20, 1)
                if not request:
                    return
                if made := _fork(sock, request, fds[0], name):
                    watch = os.pidfd_open(made[0].pid)
                    living[watch] = made
                    poll.register(watch, select.POLLIN)
                continue
            poll.unregister(ready)
            if ready in living:
                program, pipe = living.pop(ready)
                try:
                    os.write(pipe, str(_code(program.pid)).encode())
                except BrokenPipeError:
                    pass  # the reader has gone: poll reports the closed pipe next
                ended[pipe] = program
                poll.register(pipe, 0)
            else:
                ended.pop(ready).wait()
            os.close(ready)


def _fork(sock: socket.socket, request: bytes, given: int, name: str) -> tuple[Forked, int] | None:
    env, folder = json.loads(request)
    theirs = socket.socket(fileno=given)
    try:
        os.chdir(folder)
        program = Forked(partial(_live, theirs, name), env, keep=given)
    except OSError as error:
        sock.send(json.dumps(str(error)).encode())
        return None
    finally:
        theirs.close()
    code, pipe = os.pipe()
    socket.send_fds(sock, [str(program.pid).encode()], [program.stdout.fileno(), program.stderr.fileno(), code])
    os.close(code)
    program.stdout.close()
    program.stderr.close()
    return program, pipe


def _live(sock: socket.socket, name: str) -> None:
    _be_called(name)
    live(sock, forked=True)


def _code(pid: int) -> int:
    """How a child has ended, which stays a child."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end is not None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _be_called(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)
