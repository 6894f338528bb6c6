"""The transport inside a node: one unix socket per worker process, one connection per pair of processes."""

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from dynamod.message.discovery import Instance
from dynamod.message.worker import Request

from .base import Outbound, Receive, Sink, Spawn
from .ends import IngressEnd, WorkerEnd
from .inbox import InboxStatistics, InboxStream
from .outbox import OutboxStatistics
from .signing import RequestSigning, Signing

log = logging.getLogger("dynamod.transport")

CONNECT_TIMEOUT = 2.0
LOOK = 1.0
"""Seconds between looks for the socket file."""


class UnixServer:
    """The worker side: listens on `path` (mode 0600) and hands each new stream to `receive`.

    `signing`: where other nodes of this machine connect; processes of the node sign nothing.
    """

    def __init__(self, path: str, receive: Receive, signing: Signing | None = None) -> None:
        self.path = path
        self._connections: set[WorkerEnd] = set()
        own = RequestSigning(signing, path) if signing is not None else None
        self.listener = Listener(path, lambda: WorkerEnd(receive, self._connections, own))

    async def start(self) -> None:
        """Begin to listen. A socket file without a listener is replaced."""
        await self.listener.start()

    def statistics(self) -> list[OutboxStatistics]:
        """A snapshot of each destination."""
        return [connection.outbox.statistics() for connection in self._connections]

    async def close(self) -> None:
        """Stop listening, close all connections and remove the socket file."""
        await self.listener.stop()
        for connection in list(self._connections):
            connection.close()
        await self.listener.close()


class Listener:
    """Listens on a unix socket, for processes of the same user."""

    def __init__(self, path: str, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._path, self._protocol = path, protocol
        self._server: asyncio.Server | None = None
        self._beginning = asyncio.Lock()  # so that the end finds the server of `keep`
        self._ended = False

    async def start(self) -> None:
        """Begin to listen. A socket file in the way is replaced. Raises OSError."""
        remove_stale(self._path)
        old = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(self._protocol, self._path)
        finally:
            os.umask(old)

    async def keep(self) -> None:
        """Listen again whenever another program (a cleaner of /tmp) has removed the socket file; to be cancelled.

        Connections that are open stay. The folder is made again by its owner.
        """
        while not self._ended:
            await asyncio.sleep(LOOK)
            async with self._beginning:
                if not self._ended and not os.path.lexists(self._path):
                    old = self._server
                    with contextlib.suppress(OSError):
                        await self.start()
                        log.warning("another program has removed the socket %s; it is there again", self._path)
                        if old is not None:
                            old.close()

    async def stop(self) -> None:
        """Accept no more, for good; what was accepted has its protocol afterwards."""
        self._ended = True
        async with self._beginning:
            await stop_accepting(self._server)

    async def close(self) -> None:
        """Stop listening, for good, and remove the socket file. Open connections are closed by their owners before."""
        await self.stop()
        if self._server is not None:
            self._server.close()
            try:
                async with asyncio.timeout(1.0):
                    await self._server.wait_closed()
            except TimeoutError:
                log.warning("connections did not close in time")
        Path(self._path).unlink(missing_ok=True)


async def stop_accepting(server: object) -> None:
    """To be called before a server is closed: afterwards all that it has accepted has its protocol.

    asyncio makes the transport of a connection one turn after it has accepted it, and tells the protocol a turn later.
    A server that closes in between leaves the connection open (https://github.com/python/cpython/issues/109564).
    """
    if isinstance(server, asyncio.Server):  # those of uvloop and EitherServer need nothing
        loop = asyncio.get_running_loop()
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())
        for _ in range(2):
            await asyncio.sleep(0)


def remove_stale(path: str) -> None:
    """Remove a socket file of ours that is in the way; anything that is no socket stays and fails the bind."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


class UnixTransport:
    """The ingress side: connects to each worker's socket on first use and keeps the connection.

    `signing`: where the sockets belong to other nodes of this machine.
    """

    def __init__(self, spawn: Spawn, signing: Signing | None = None) -> None:
        self._spawn, self._signing = spawn, signing
        self._ends: dict[str, IngressEnd] = {}

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is reported by `sink.lost`."""
        path = instance.transport["unix"]
        end = self._ends.get(path)
        if end is None:
            own = RequestSigning(self._signing, path) if self._signing is not None else None
            end = IngressEnd(lambda: self._ends.pop(path, None), own)
            self._spawn(self._connect(path, end), f"connect {path}")
            self._ends[path] = end
        return InboxStream(end.inbox, end.inbox.open(instance.path, request, sink))

    def reaches(self, path: str) -> bool:
        """Whether the address has a listener, or had one at the last look."""
        return path in self._ends or os.path.exists(path)

    async def _connect(self, path: str, end: IngressEnd) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await asyncio.get_running_loop().create_unix_connection(lambda: end, path)
        except (OSError, TimeoutError) as error:
            end.fail(f"cannot connect to the worker: {error or 'timed out'}")

    def statistics(self) -> dict[str, InboxStatistics]:
        """A snapshot of each connection, by socket path."""
        return {path: end.inbox.statistics() for path, end in self._ends.items()}

    async def close(self) -> None:
        """Close all connections."""
        for end in list(self._ends.values()):
            end.fail("the worker is gone")
