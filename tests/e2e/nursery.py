"""Component processes that a forked daemon starts later on: forked as its first ones are, and no new interpreters.

A daemon forks its first processes before its loop runs (dynamod/daemon/spawn.py). Each that it starts again, or that
scaling adds, is a new interpreter with a quarter of a second of imports. A daemon that forks.py has forked asks its
nursery for them: a child that is forked before the daemon's loop runs, and that forks one process per request. `tree`
of processes.py passes by the nursery and counts what it has forked. A process that would read other variables at its
start is a new interpreter, and so is each that a daemon with an interpreter of its own starts.

A user's file that forks.py has forked has a nursery, too, for the daemon that it starts where there is none.
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

from dynamod.cli import attach, main
from dynamod.daemon import spawn
from dynamod.daemon.forked import Forked
from dynamod.runtime import attach as reach
from dynamod.runtime.host import live

from ..run_folder import Kinds

HOST = ["-m", "dynamod.runtime.host"]
DAEMON = ["-m", "dynamod", "--ephemeral"]


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
    spawn.subprocess = _starting(Nursery(name).popen)  # type: ignore[attr-defined]


def install_for_file(name: str, run: str) -> None:
    """Give a nursery to the user's file that this process is about to be. `run`: the folder of the run of the tests."""
    nursery, kinds = Nursery(name), Kinds(run)

    def popen(words: Sequence[str], *, env: Mapping[str, str], cwd: str, **rest: Any) -> Any:
        if nursery.can([*words[:4]] == [sys.executable, *DAEMON], env) and not kinds.first(("python", *DAEMON)):
            return Daemon(*nursery.fork(dict(env), cwd, words=words[3:]))
        return subprocess.Popen(words, env=env, cwd=cwd, **rest)

    reach.subprocess = _starting(popen)  # type: ignore[attr-defined]


def _starting(popen: Any) -> SimpleNamespace:
    """What stands for the module `subprocess`."""
    return SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)


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
        if self.can([*words[:3]] == [sys.executable, *HOST], env):
            return Born(*self.fork(dict(env), cwd or os.getcwd(), sock=pass_fds[0]))
        return subprocess.Popen(words, env=env, cwd=cwd, pass_fds=pass_fds, **rest)

    def can(self, known: bool, env: Mapping[str, str]) -> bool:
        """Whether the nursery forks what is `known` to it: not where a new interpreter would read other variables."""
        return known and once(env) == self._once

    def fork(
        self, env: dict[str, str], folder: str, *, sock: int | None = None, words: Sequence[str] = ()
    ) -> tuple[int, list[int]]:
        """Fork a process of the daemon at `sock`, or else a daemon with these `words`; its number and its ends."""
        given = os.open(os.devnull, os.O_RDONLY) if sock is None else sock
        try:
            socket.send_fds(self._sock, [json.dumps([env, folder, [*words]]).encode()], [given])
        finally:
            if sock is None:
                os.close(given)
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


class Daemon(Born):
    """A daemon that a user's file has started. A thread of the file waits for its end; others see what that saw."""

    def __init__(self, pid: int, fds: Sequence[int]) -> None:
        super().__init__(pid, fds)
        self.stdout.close()

    def poll(self) -> int | None:
        """The exit code; None while the thread waits."""
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
    env, folder, words = json.loads(request)
    theirs = socket.socket(fileno=given) if not words else None
    run = partial(_be_daemon, words, name) if theirs is None else partial(_live, theirs, name)
    try:
        os.chdir(folder)
        program = Forked(run, env, keep=given)
    except OSError as error:
        sock.send(json.dumps(str(error)).encode())
        return None
    finally:
        os.close(given) if theirs is None else theirs.close()
    code, pipe = os.pipe()
    socket.send_fds(sock, [str(program.pid).encode()], [program.stdout.fileno(), program.stderr.fileno(), code])
    os.close(code)
    program.stdout.close()
    program.stderr.close()
    return program, pipe


def _live(sock: socket.socket, name: str) -> None:
    _be_called(name)
    live(sock, forked=True)


def _be_daemon(words: Sequence[str], name: str) -> None:
    _be_called(name)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.argv = ["dynamod", *words]
    install(name, daemon=True)
    main.dynamod()


def _code(pid: int) -> int:
    """How a child has ended, which stays a child."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end is not None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _be_called(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)
