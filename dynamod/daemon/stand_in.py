"""What answers on a port while no ingress process lives: 503, so that clients need not wait for a process that is away.

A short absence is none: connections wait in the listener's backlog until the next process accepts them.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import cast

from dynamod.message.errors import UserError
from dynamod.message.tls import TlsFiles, server_context

BODY = b'{"error":{"message":"no ingress process is running; it is being started","type":"service_unavailable",'
BODY += b'"param":null,"code":"no_ingress"}}'
ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
AWAY = 2.0
"""Seconds without an ingress after which clients are answered here."""
LOOK = 0.25
READ = 5.0
"""Seconds for a client to send its request."""


class _Refusal(asyncio.Protocol):
    """Answers one request of a connection, once its header is complete, and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._head = cast("asyncio.Transport", transport), b""  # uvloop's is no subclass
        self._timer = asyncio.get_running_loop().call_later(READ, transport.close)

    def data_received(self, data: bytes) -> None:
        self._head = (self._head + data)[-65536:]
        if b"\r\n\r\n" in self._head and not self._transport.is_closing():
            self._transport.write(ANSWER)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()


class StandIn:
    """Answers on listening sockets without an ingress process for AWAY seconds.

    `ports()`: the sockets, whether an ingress process serves each of them now, and what HTTPS is served with.
    `changes`: what is called when that may have changed.
    """

    def __init__(
        self,
        ports: Callable[[], Iterable[tuple[socket.socket, bool, TlsFiles | None]]],
        changes: list[Callable[[], None]],
    ) -> None:
        self._ports, self._changes = ports, changes
        self._answering: dict[socket.socket, asyncio.Server] = {}

    def _leave(self) -> None:
        """Answer no more where an ingress process serves."""
        if self._answering:
            away = {sock for sock, serves, _ in self._ports() if not serves}
            for sock in [*self._answering]:
                if sock not in away:
                    self._answering.pop(sock).close()

    async def run(self) -> None:
        """Look from time to time; to be cancelled."""
        loop = asyncio.get_running_loop()
        served: dict[socket.socket, float] = {}
        self._changes.insert(0, self._leave)  # before what tells others that the ingress is ready
        try:
            while True:
                now, here = loop.time(), {sock: (serves, files) for sock, serves, files in self._ports()}
                served = {sock: now if serves else served.get(sock, now) for sock, (serves, _) in here.items()}
                for sock, since in served.items():
                    if sock not in self._answering and now - since > AWAY:
                        # it was closed just now, or the TLS files cannot be used, which the ingress reports
                        with contextlib.suppress(OSError, UserError):
                            self._answering[sock] = await _answered(sock, here[sock][1])
                self._leave()
                await asyncio.sleep(LOOK)
        finally:
            self._changes.remove(self._leave)
            for listener in self._answering.values():
                listener.close()


async def _answered(sock: socket.socket, files: TlsFiles | None) -> asyncio.Server:
    with contextlib.ExitStack() as undo:
        ours = undo.enter_context(sock.dup())
        secure = server_context(files) if files is not None else None
        server = await asyncio.get_running_loop().create_server(_Refusal, sock=ours, ssl=secure)
        undo.pop_all()
    return server
