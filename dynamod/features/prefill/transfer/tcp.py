"""Over TCP, between nodes, in the clear or with TLS: the bytes of a piece follow its frame."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError
from dynamod.transport.base import Spawn
from dynamod.transport.either import EitherServer
from dynamod.transport.tcp import at
from dynamod.transport.tls import PeerTls, explained

from .base import Listening
from .reading import ReaderEnd
from .sending import SourceEnd

HANDSHAKE_S = 5.0
"""Seconds in which a reader must show its certificate."""


class Tcp:
    """A backend. The address is `host:port`, that of an IPv6 host `[host]:port`."""

    async def listen(
        self, source: Callable[[type[SourceEnd]], SourceEnd], host: str, folder: Path | None, port: int
    ) -> Listening:
        """Listen at `host`, where port 0 is a free one. Raises OSError."""
        return await _listen(source, host, port)

    async def connect(self, address: str, reader: Callable[[type[ReaderEnd]], ReaderEnd]) -> ReaderEnd:
        """Connect. Raises OSError."""
        return await _connect(address, reader)


class Tls:
    """The same with certificates that both ends show. `spawn`: to listen, where `tls` accepts readers without them."""

    def __init__(self, tls: PeerTls, spawn: Spawn | None = None) -> None:
        self._tls, self._spawn = tls, spawn

    async def listen(
        self, source: Callable[[type[SourceEnd]], SourceEnd], host: str, folder: Path | None, port: int
    ) -> Listening:
        """Listen at `host`, where port 0 is a free one. Raises OSError."""
        try:
            revocations = self._tls.revocations()
            context = self._tls.server(revocations)
        except UserError as error:
            raise OSError(error.line()) from None

        def refreshed() -> ssl.SSLContext:
            if revocations is not None:
                revocations.refresh()
            return context

        def secure(kind: type[SourceEnd]) -> SourceEnd:
            refreshed()  # before the handshake
            return source(kind)

        if not self._tls.accept or self._spawn is None:
            return await _listen(secure, host, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=1024)
        server = EitherServer(sock, lambda: source(SourceEnd), refreshed, self._spawn, HANDSHAKE_S)
        return Listening(at(host, sock.getsockname()[1]), server.close, clear=True)

    async def connect(self, address: str, reader: Callable[[type[ReaderEnd]], ReaderEnd]) -> ReaderEnd:
        """Connect; the source must have a certificate for its address. Raises OSError."""
        try:
            name = self._tls.name or _host_and_port(address)[0]
            return await _connect(address, reader, ssl=self._tls.client(), server_hostname=name)
        except UserError as error:
            raise OSError(error.line()) from None
        except ssl.SSLError as error:
            raise OSError(explained(error)) from None


async def _listen(source: Callable[[type[SourceEnd]], SourceEnd], host: str, port: int, **tls: Any) -> Listening:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: source(SourceEnd), host, port, **tls)
    return Listening(at(host, server.sockets[0].getsockname()[1]), server.close)


async def _connect(address: str, reader: Callable[[type[ReaderEnd]], ReaderEnd], **tls: Any) -> ReaderEnd:
    host, port = _host_and_port(address)
    loop = asyncio.get_running_loop()
    _, end = await loop.create_connection(lambda: reader(ReaderEnd), host, port, **tls)
    return end


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) < 2**16):
        raise OSError(f"{address!r} is no address of a host and a port")
    return host.strip("[]"), int(port)
