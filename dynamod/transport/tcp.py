"""The transport between nodes without a broker: frames over TCP, one connection per pair of processes.

A worker process listens at a port of its own. Both ends show certificates (mutual TLS), or requests are signed with the
secret of the cluster, or both. A peer whose machine has gone is noticed by TCP itself within DEAD seconds.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterable

from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.worker import Request

from .base import Outbound, Receive, Sink, Spawn
from .either import EitherServer
from .ends import IngressEnd, WorkerEnd
from .inbox import InboxStatistics, InboxStream
from .outbox import OutboxStatistics
from .signing import RequestSigning, Signing
from .tcp_settings import Contexts, TcpSettings
from .tls import CERT, explained
from .unix import stop_accepting

log = logging.getLogger("dynamod.transport")

UNANSWERED = (
    "the worker at {} closed the connection before its greeting; check that the worker accepts the certificate of this "
    f"node ({CERT})"
)
KEY, TLS_KEY = "tcp", "tcp_tls"
"""Keys in `Instance.transport`: `host:port`, an IPv6 host in brackets; the mode of TLS where it is spoken there."""
CONNECT_TIMEOUT = 2.0
DEAD = 5
"""Seconds without a sign of the other machine after which a connection is lost."""


class TcpPeers:
    """`address`: where other nodes reach this process; empty until `serve`. `receive` gets the requests from there."""

    def __init__(self, settings: TcpSettings, spawn: Spawn, receive: Receive, signing: Signing) -> None:
        self.settings, self._spawn, self._receive, self._signing = settings, spawn, receive, signing
        self.address = ""
        self._server: asyncio.Server | EitherServer | None = None
        self._serving = asyncio.Lock()
        self._workers: set[WorkerEnd] = set()
        self._ends: dict[str, IngressEnd] = {}
        self._tls = settings.contexts()

    async def serve(self) -> str:
        """Listen, if that has not begun; returns the address. Raises UserError when no port is free."""
        async with self._serving:
            if self._server is None:
                sock = _bound(self.settings)
                self.address = at(self.settings.address, sock.getsockname()[1])
                self._server = await self._listen(sock, RequestSigning(self._signing, self.address))
        return self.address

    async def _listen(self, sock: socket.socket, signing: RequestSigning) -> asyncio.Server | EitherServer:
        tls = self._tls

        def end() -> WorkerEnd:
            return WorkerEnd(self._receive, self._workers, signing)

        if tls is None:
            return await asyncio.get_running_loop().create_server(end, sock=sock)

        def context() -> ssl.SSLContext:
            tls.refresh()
            return tls.server

        if self.settings.accept:
            return EitherServer(sock, end, context, self._spawn, CONNECT_TIMEOUT)

        def secure_end() -> WorkerEnd:
            tls.refresh()  # before the handshake
            return end()

        return await asyncio.get_running_loop().create_server(
            secure_end, sock=sock, ssl=tls.server, ssl_handshake_timeout=CONNECT_TIMEOUT
        )

    @property
    def places(self) -> dict[str, str]:
        """What instances of this process say of it in `Instance.transport`."""
        if not self.address:
            return {}
        if self._tls is None:
            return {KEY: self.address}
        return {KEY: self.address, TLS_KEY: "accept" if self.settings.accept else "require"}

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is reported by `sink.lost` or `sink.link_lost`."""
        address = instance.transport[KEY]
        end = self._ends.get(address)
        if end is None:
            # a release that knows no modes says nothing of TLS, and all its nodes have it or none
            plain = self.settings.accept and TLS_KEY not in instance.transport
            tls = self._tls if not plain else None
            # a server that refuses a certificate closes the connection, and sends no alert
            unanswered = UNANSWERED.format(address) if tls is not None else ""
            signing = RequestSigning(self._signing, address)
            end = IngressEnd(lambda: self._ends.pop(address, None), signing, unanswered)
            self._spawn(self._connect(address, end, tls), f"connect {address}")
            self._ends[address] = end
        return InboxStream(end.inbox, end.inbox.open(instance.path, request, sink))

    async def _connect(self, address: str, end: IngressEnd, tls: Contexts | None) -> None:
        host, _, port = address.rpartition(":")
        if tls is not None:
            tls.refresh()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                sock = await _connected(host.strip("[]"), int(port))
                await asyncio.get_running_loop().create_connection(
                    lambda: end,
                    sock=sock,
                    ssl=tls.client if tls is not None else None,
                    server_hostname="" if tls is not None else None,
                )
        except (OSError, TimeoutError, ValueError) as error:
            reason = f"cannot connect to the worker at {address}: {explained(error) or 'timed out'}"
            if isinstance(error, ConnectionRefusedError):
                end.fail(reason)
            else:
                log.warning("%s", reason)
                end.unreached(reason)

    def inboxes(self) -> dict[str, InboxStatistics]:
        """A snapshot of each connection to a worker process, by its address."""
        return {address: end.inbox.statistics() for address, end in self._ends.items()}

    def outboxes(self) -> list[OutboxStatistics]:
        """A snapshot of each connection from an ingress process."""
        return [end.outbox.statistics() for end in self._workers]

    async def close(self) -> None:
        """Close all connections, and listen no more."""
        for end in list(self._ends.values()):
            end.fail("the worker is gone")
        await stop_accepting(self._server)
        for worker in list(self._workers):
            worker.close()
        if self._server is not None:
            self._server.close()
        if isinstance(self._server, asyncio.AbstractServer):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._server.wait_closed()


def at(host: str, port: int) -> str:
    """An address as `Instance.transport` has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(settings: TcpSettings) -> socket.socket:
    """A listening socket at the first free port of the range. Raises UserError."""
    family = socket.AF_INET6 if ":" in settings.listen else socket.AF_INET
    why = ""
    for port in settings.ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _watch_peer(sock)  # connections that are accepted inherit it
            sock.bind((settings.listen, port))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            why = f"{at(settings.listen, port)}: {error.strerror or error}"
        else:
            sock.setblocking(False)
            return sock
    raise UserError(f"no port for requests of other nodes: {why}", "see DYNAMOD_TCP_LISTEN and DYNAMOD_TCP_PORTS")


async def _connected(host: str, port: int) -> socket.socket:
    """A connected socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    places: Iterable[tuple[int, tuple[str, int]]] = (
        (family, (str(where[0]), int(where[1])))
        for family, _, _, _, where in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    last = OSError(f"{host} has no address")
    for family, place in places:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        _watch_peer(sock)
        try:
            await loop.sock_connect(sock, place)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last


def _watch_peer(sock: socket.socket) -> None:
    """Have the kernel end the connection when the other machine is silent, with data under way and without."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", DEAD - 2)):
        if (option := getattr(socket, name, None)) is not None:  # by its name: macOS has other ones
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, DEAD * 1000)
