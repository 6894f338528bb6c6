"""The source's doors: one listening socket per backend, and the sign of life of all connections."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamod.transport.base import Spawn
from dynamod.transport.signing import Signing
from dynamod.transport.tls import PeerTls

from .names import backends
from .sending import Ends, SourceEnd
from .sessions import Sessions

log = logging.getLogger("dynamod.transfer")

BEAT = 1.0
"""Seconds between two signs of life on a connection that has nothing else to send."""


class BlockServer:
    """Lets other processes read the sessions of this one. `folder`: private, for sockets; None: no shared memory.

    `signing`: judges readers by their signatures. `tls`: readers of other nodes show certificates, and nothing else
    leaves the node unless `tls` accepts it.
    """

    def __init__(
        self,
        sessions: Sessions,
        spawn: Spawn,
        folder: Path | None,
        signing: Signing | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self._sessions, self._spawn, self._folder, self._tls = sessions, spawn, folder, tls
        self._addresses: dict[str, str] = {}
        self._closers: list[Callable[[], None]] = []
        self._ends = Ends(signing)
        self._task: Any = None  # sends signs of life

    async def start(self, host: str, port: int = 0) -> None:
        """Listen by every backend that works here. `host`: the own address, as other nodes reach it.

        `port`: the one for TCP; 0: a free one. Raises OSError when none works, or TCP does not at the port that it has.
        """
        problems = []
        for name, backend in backends(self._tls, self._spawn):
            if name in self._addresses:
                continue
            try:
                listening = await backend.listen(self._source, host, self._folder, port)
            except OSError as error:
                if port and name in ("tcp", "tls"):
                    why = os.strerror(error.errno) if error.errno else error
                    raise OSError(error.errno, f"{why}: port {port} of {host}") from None
                problems.append(f"{name}: {error}")
                log.warning("blocks are not offered over %s: %s", name, error)
                continue
            if listening is not None:
                self._addresses |= dict.fromkeys((name, "tcp") if listening.clear else (name,), listening.address)
                self._closers.append(listening.close)
        if not self._addresses:
            raise OSError("; ".join(problems))
        self._task = self._spawn(self._beat(), "signs of life of block transfers")

    @property
    def addresses(self) -> dict[str, str]:
        """Backend name to the address that other processes read at."""
        return dict(self._addresses)

    def close(self) -> None:
        """Stop listening, and end all connections at once."""
        for close in self._closers:
            close()
        self._closers.clear()
        self._addresses.clear()
        for end in list(self._ends):
            end.abort()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _source(self, end: type[SourceEnd]) -> SourceEnd:
        return end(self._sessions, self._ends)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            for end in list(self._ends):
                end.beat()
            if refused := self._ends.refused:
                self._ends.refused = 0
                log.warning("connections to the port of block transfers refused=%d open=%d", refused, len(self._ends))
