"""A server that the worker starts: its output goes to the log; neither lives longer than the other."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process, SubprocessStreamProtocol
from collections.abc import Sequence

from dynamod.message.errors import UserError

from ..base import Spawn
from . import launch

log = logging.getLogger("dynamod.engine")

LINE = 64 * 1024
"""Bytes of a line of its output; what is longer is dropped."""
GRACE = 2.0
"""Seconds from SIGTERM to SIGKILL: less than the worker itself has."""
LAST_WORDS = 0.5
"""Seconds that the output of a program may still come when it has ended: a child of it may hold the pipe."""


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Command:
    """A running program. It stays in the process group of the worker: what it starts is killed with that.

    `ready`: it has answered. Until then its output is logged at level debug: a start that fails is one line.
    """

    def __init__(self, transport: asyncio.SubprocessTransport, process: Process, program: str, spawn: Spawn) -> None:
        self._transport, self._process, self._program = transport, process, program
        self._last = ""
        self.ready = False
        self._output = spawn(self._read(), "output of cmd")

    @classmethod
    async def start(cls, words: Sequence[str], spawn: Spawn) -> "Command":
        """Start it. A program that cannot be run ends at once, with the reason as its last line."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(LINE, loop),
            *(sys.executable, "-I", launch.__file__, str(os.getpid()), *words),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        return cls(transport, Process(transport, protocol, loop), os.path.basename(words[0]), spawn)

    async def ended(self) -> UserError:
        """Wait for its end; what is to be said of it, with its last line."""
        code = await self._process.wait()
        await asyncio.wait([self._output], timeout=LAST_WORDS)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        text = f"openai: cmd {self._program} {how}{': ' if self._last else ''}{self._last}"
        return UserError(text, "try the command line on its own")

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    async def stop(self) -> None:
        """End it in good order, else by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(GRACE):
                await self._process.wait()
        except TimeoutError:
            log.warning("%s did not end within %g s and is killed", self._program, GRACE)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._transport.close()  # a child of the program may still hold the pipe

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # a line above the reader's limit: what is buffered was dropped
                continue
            if not line:
                return
            if text := line.decode(errors="replace").strip():
                self._last = text
                log.log(logging.INFO if self.ready else logging.DEBUG, "%s: %s", self._program, text)
