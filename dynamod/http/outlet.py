"""The short way of streams to the sockets of their clients.

A transport does some work of its own for each write, nearly as much as the kernel does for the bytes of a token. While
nothing waits in the transport of a client, what its stream makes goes to the socket itself. The frames that all
streams make in one turn of the event loop leave together: a client that is woken by each of them would take the
processor from the streams that follow.
"""

import asyncio
from os import write

HIGH_WATER = 64 * 1024
"""Unsent bytes above which events wait in their source instead of in the transport."""


class Outlet:
    """What one stream writes to its client, in order. `outlets`: of the server.

    `direct`: the socket may be written to; else all bytes go through the transport. `free`: nothing waits in the
    transport, so frames may go to the socket.
    """

    __slots__ = ("_descriptor", "_frames", "_outlets", "_transport", "free")

    def __init__(self, transport: asyncio.WriteTransport, outlets: "Outlets", *, direct: bool) -> None:
        self.free = False
        self._transport: asyncio.WriteTransport | None = transport
        self._descriptor = _socket_of(transport) if direct else -1
        self._outlets = outlets
        self._frames: list[bytes] = []

    def ready(self) -> bool:
        """Whether the client takes more: not much waits in the transport."""
        if self._transport is None:
            return False
        waiting = self.waiting
        self.free = not waiting and self._descriptor >= 0
        return waiting <= HIGH_WATER

    @property
    def waiting(self) -> int:
        """Bytes in the transport."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def put(self, data: bytes) -> None:
        """Write at the end of this turn, or now if the transport has to."""
        if self.free:
            if not self._frames:
                waiting = self._outlets.waiting
                if not waiting:
                    asyncio.get_running_loop().call_soon(self._outlets.send)
                waiting.append(self)
            self._frames.append(data)
        else:
            self._pass(data)

    def flush(self) -> None:
        """Write what `put` has taken. What the socket does not take now is the transport's to send."""
        frames = self._frames
        if not frames:
            return  # the client has left, or it is out already
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        try:
            sent = write(self._descriptor, data)
        except OSError:  # the socket is full, or the client has left, which the transport finds out
            sent = 0
        if sent < len(data):
            self.free = False
            self._pass(data[sent:])

    def lost(self) -> None:
        """The transport is about to close the socket: its number may be another client's then."""
        self.free, self._transport = False, None
        self._frames.clear()

    def _pass(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


class Outlets:
    """Those of one server. `waiting`: those with frames of this turn."""

    def __init__(self) -> None:
        self.waiting: list[Outlet] = []

    def send(self) -> None:
        """Flush all that wait: at the end of the turn, or before what may take long."""
        waiting, self.waiting = self.waiting, []
        for outlet in waiting:
            outlet.flush()


def _socket_of(transport: asyncio.WriteTransport) -> int:
    """The descriptor of its socket; -1: bytes have to go through the transport, as with TLS."""
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return -1
    number: int = sock.fileno()
    return number
