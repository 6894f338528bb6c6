"""Starting component processes, some of them before it is known what they will run.

A new interpreter needs most of its start-up time for imports that do not depend on the plan. So a command that is
about to serve starts `spare` processes first and reads its own files while they warm up; what is not taken goes away
when its lifeline closes. A process gets its plan, and the sockets to listen on, over the lifeline.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from dynamod.transport.framing import pack

WARM = ("ingress", "worker")
"""What a spare process can be warmed up for."""


class Child:
    """A process that runs `dynamod.runtime.host`, in a session of its own. `sock` is our end of its lifeline."""

    def __init__(self, environ: Mapping[str, str], warm: str = "") -> None:
        self.sock, theirs = socket.socketpair()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "dynamod.runtime.host", str(theirs.fileno()), warm],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            self.sock.close()
            raise
        finally:
            theirs.close()
        self.pid = self.popen.pid

    def tell(self, plan: bytes, fds: Sequence[int]) -> None:
        """Send the plan and the descriptors it speaks of (by their place in `fds`)."""
        socket.send_fds(self.sock, [pack(plan)], list(fds))
        self.sock.setblocking(False)

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self.popen.poll()

    async def outputs(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        """Its standard output and standard error."""
        loop = asyncio.get_running_loop()
        readers: list[asyncio.StreamReader] = []
        for pipe in (self.popen.stdout, self.popen.stderr):
            reader = asyncio.StreamReader()
            await loop.connect_read_pipe(lambda reader=reader: _PipeProtocol(reader), pipe)  # type: ignore[misc]
            readers.append(reader)
        return readers[0], readers[1]

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        if hasattr(os, "pidfd_open"):
            watch = os.pidfd_open(self.pid)
            loop.add_reader(watch, done.set)
            try:
                await done.wait()
            finally:
                loop.remove_reader(watch)
                os.close(watch)
        else:
            thread = threading.Thread(
                target=lambda: (self.popen.wait(), loop.call_soon_threadsafe(done.set)), daemon=True
            )
            thread.start()
            await done.wait()
        return self.popen.wait()


class _PipeProtocol(asyncio.StreamReaderProtocol):
    """Closes its transport at the end of the output.

    The base class leaves it open. The garbage collector would close the descriptor later, when its number may be that
    of another file already.
    """

    def eof_received(self) -> bool:
        """Called by the transport; False: it closes itself."""
        super().eof_received()
        return False


_spares: dict[str, Child] = {}


def environment() -> dict[str, str]:
    """The environment of component processes: ours, with their output going through pipes to us."""
    environ = dict(os.environ)
    environ["DYNAMOD_LOG_PIPE"] = "1"
    environ["PYTHONUNBUFFERED"] = "1"
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        environ.pop(name, None)  # only the daemon speaks to systemd
    return environ


def prewarm(kinds: Sequence[str] = WARM) -> None:
    """Start the spares. Called by commands that will serve for certain."""
    for kind in kinds:
        if kind not in _spares:
            _spares[kind] = Child(environment(), kind)


def take_spare(kind: str, environ: Mapping[str, str]) -> Child | None:
    """A spare that was started with this very environment, if there is one that lives."""
    spare = _spares.get(kind)
    if spare is None or dict(environ) != environment():
        return None
    del _spares[kind]
    if spare.returncode is not None:
        end(spare)
        return None
    return spare


def drop_spares() -> None:
    """End the spares that nobody took."""
    while _spares:
        end(_spares.popitem()[1])


def end(spare: Child) -> None:
    """End a spare at once: it has done nothing yet, and nobody should wait for it."""
    spare.popen.kill()
    spare.sock.close()
    for pipe in (spare.popen.stdout, spare.popen.stderr):
        if pipe is not None:
            pipe.close()
    spare.popen.wait()
