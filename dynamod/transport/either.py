"""Listens for connections with TLS and without at one port: the first bytes of a connection tell which one it is.

For the time in which the nodes of a cluster change to TLS.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from .base import Spawn

log = logging.getLogger("dynamod.transport")

AGAIN_S = 1.0
"""Seconds without new connections after the process has run out of descriptors."""
LOOK_S = 0.02
"""Seconds before the first bytes are looked at again where too few are here."""
AT_ONCE = 100
"""Connections that are accepted before something else runs."""


class EitherServer:
    """Accepts connections at a listening socket.

    `end()` makes the protocol of each. `context()` is what TLS uses. `seconds`: for the first bytes and the handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        end: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        spawn: Spawn,
        seconds: float,
    ) -> None:
        self._listening, self._end, self._context = listening, end, context
        self._spawn, self._seconds = spawn, seconds
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Accept no more. What was accepted stays."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _begin(self) -> None:
        self._later = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection is accepted for %g s: %s", AGAIN_S, error)
                self._loop.remove_reader(self._listening)
                self._later = self._loop.call_later(AGAIN_S, self._begin)
                return
            sock.setblocking(False)
            self._spawn(self._take(sock), "a connection with or without TLS")

    async def _take(self, sock: socket.socket) -> None:
        taken = False
        try:
            async with asyncio.timeout(self._seconds):
                begins = await self._first(sock)
                if begins:
                    context = self._context() if is_tls(begins) else None
                    await self._loop.connect_accepted_socket(self._end, sock, ssl=context)
                    taken = True
        except (OSError, TimeoutError) as error:  # also of TLS; asyncio's own server says nothing then, too
            log.debug("a connection was not made: %s", error or "timed out")
        finally:
            if not taken:
                sock.close()

    async def _first(self, sock: socket.socket) -> bytes:
        """The bytes that tell which connection it is; they stay to be read. Empty: the peer has left."""
        readable = asyncio.Event()
        self._loop.add_reader(sock, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(sock)
        while True:
            found = sock.recv(len(TLS_BEGINS) + 1, socket.MSG_PEEK)
            if not found or not TLS_BEGINS.startswith(found):
                return found
            await asyncio.sleep(LOOK_S)


TLS_BEGINS = b"\x16\x03"
"""A record of TLS that holds a handshake, of version 3; then comes the minor version, above 0.

A frame of a plain connection that began so would be longer than what may come first in it.
"""


def is_tls(begins: bytes) -> bool:
    """Whether a connection with these first bytes speaks TLS."""
    return begins[:2] == TLS_BEGINS and begins[2:3] > b"\0"
