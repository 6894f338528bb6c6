"""Starting component processes, some of them before it is known what they will run.

A new interpreter needs most of its start-up time for imports that do not depend on the plan. So a command that is
about to serve forks a daemon, which forks spare processes first (forked.py), and the command reads its own files in the
meantime. Unused spares end. A process gets its plan, and the sockets to listen on, over the connection to its daemon.
"""

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Protocol

from dynamod.runtime.attach import NOT_OURS
from dynamod.runtime.snapshot import Snapshot, environment
from dynamod.transport.framing import pack

from .forked import Forked


@dataclass(frozen=True, slots=True)
class Origin:
    """What a graph's processes inherit from the command that brought the graph: environment, folder, interpreter."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: str = ""
    python: str = sys.executable

    def environment(self) -> dict[str, str]:
        """The environment of component processes, with their output going through pipes to the daemon."""
        environ = {name: value for name, value in self.environ.items() if name not in NOT_OURS}
        return {**environ, "DYNAMOD_LOG_PIPE": "1", "PYTHONUNBUFFERED": "1"}


class Program(Protocol):
    """A child process, as `subprocess.Popen` describes it."""

    pid: int

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of its standard output."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """The reading end of its standard error."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for the exit code."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Child:
    """A process that runs `dynamod.runtime.host`, in a session of its own. `sock` is our end of its socket pair."""

    def __init__(self, sock: socket.socket, program: Program) -> None:
        self.sock, self.program = sock, program
        self.pid = program.pid

    @classmethod
    def start(cls, environ: Mapping[str, str], warm: str, origin: Origin, snapshot: Snapshot | None = None) -> "Child":
        """A process with an interpreter of its own. `warm`: the kind of process that it imports modules for."""
        ours, theirs = socket.socketpair()
        try:
            program = subprocess.Popen(
                [origin.python, "-m", "dynamod.runtime.host", str(theirs.fileno()), warm],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(environ, snapshot.folder) if snapshot is not None else dict(environ),
                cwd=origin.folder or None,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(ours, program)

    @classmethod
    def fork(cls, origin: Origin, live: Callable[[socket.socket], object]) -> "Child":
        """A process with the modules that this one has imported, which runs `live` with its end of the pair.

        To be called where no thread and no event loop runs yet, in the folder of `origin`. Raises OSError.
        """
        ours, theirs = socket.socketpair()
        try:
            program = Forked(partial(live, theirs), origin.environment(), keep=theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(ours, program)

    def send_plan(self, plan: bytes, fds: Sequence[int]) -> None:
        """Send the plan and the descriptors it speaks of (by their place in `fds`)."""
        socket.send_fds(self.sock, [pack(plan)], list(fds))
        self.sock.setblocking(False)

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self.program.poll()

    async def outputs(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        """Its standard output and standard error."""
        loop = asyncio.get_running_loop()
        readers: list[asyncio.StreamReader] = []
        for pipe in (self.program.stdout, self.program.stderr):
            reader = asyncio.StreamReader()
            await loop.connect_read_pipe(lambda reader=reader: _PipeProtocol(reader), pipe)  # type: ignore[misc]
            readers.append(reader)
        return readers[0], readers[1]

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        watch = os.pidfd_open(self.pid)
        loop.add_reader(watch, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return self.program.wait()

    def end(self) -> None:
        """End a spare at once: it has done nothing yet, and its end should take no time."""
        self.program.kill()
        self.sock.close()
        for pipe in (self.program.stdout, self.program.stderr):
            if pipe is not None:
                pipe.close()
        self.program.wait()


class _PipeProtocol(asyncio.StreamReaderProtocol):
    """Closes its transport at the end of the output.

    The base class leaves it open. The garbage collector would close the descriptor later, when its number may be that
    of another file already.
    """

    def eof_received(self) -> bool:
        """Called by the transport; False: it closes itself."""
        super().eof_received()
        return False


_spares: dict[str, tuple[Origin, Child]] = {}


def prewarm(kinds: Sequence[str], origin: Origin, live: Callable[..., object]) -> None:
    """Fork spares for `ingress` or `worker` processes; see `Child.fork`. `live` gets `kind` as well.

    A spare imports what its kind needs while this process imports what a daemon needs.
    """
    gc.freeze()  # else the collectors of the children copy the memory that they share
    for kind in kinds:
        if kind not in _spares:
            _spares[kind] = (origin, Child.fork(origin, partial(live, kind=kind)))


def take_spare(kind: str, origin: Origin, environ: Mapping[str, str]) -> Child | None:
    """A spare that was started as this process would be, if there is one that lives.

    DYN_LOG may differ: a spare is started before the command has read its flags, and gets it with its plan.
    """
    made_for, spare = _spares.get(kind, (None, None))
    if made_for is None or spare is None or (made_for.folder, made_for.python) != (origin.folder, origin.python):
        return None
    if {**made_for.environment(), "DYN_LOG": ""} != {**environ, "DYN_LOG": ""}:
        return None
    del _spares[kind]
    if spare.returncode is not None:
        spare.end()
        return None
    return spare


def drop_spares() -> None:
    """End the spares that were not taken."""
    while _spares:
        _spares.popitem()[1][1].end()
