"""Frames on a byte stream: 4 bytes little-endian length, then that many bytes of MessagePack."""

import asyncio
import os
import struct
from collections.abc import Callable, Iterator
from typing import ClassVar, cast

import msgspec

_LENGTH = struct.Struct("<I")
MAGIC = b"dynamod\x01"
"""First bytes each side sends: a stranger on the socket is seen at once, and so is another protocol version."""

LIMIT = 64 * 1024 * 1024
"""Largest frame. A prompt of a million tokens takes 4 MB; what is larger is corrupt."""

LARGE = 256 * 1024
"""Bytes above which a payload is not copied to be cut out or packed."""

AT_ONCE = 8
"""Payloads that `write_soon` sends with one call of the system.

Each call may wake the other end. More payloads would let it wait while this end still makes them.
"""


class FrameError(ValueError):
    """The bytes are no frames of ours."""


def pack(payload: bytes) -> bytes:
    """One frame. Raises FrameError above LIMIT."""
    return _head(payload) + payload


def _head(payload: bytes) -> bytes:
    if len(payload) > LIMIT:
        raise FrameError(f"a frame of {len(payload)} bytes is above the limit of {LIMIT}")
    return _LENGTH.pack(len(payload))


class Unframer:
    """Cuts a byte stream into payloads. `feed` returns the complete payloads; the rest waits for more bytes."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # joined when the next payload is complete: each byte is copied once
        self._missing = 0  # bytes without which nothing new can be said
        self.silent = True  # MAGIC is still to come
        self._large: memoryview | None = None  # a payload that is filled as it comes, so that its end copies little
        self._filled = 0

    def feed(self, data: bytes) -> Iterator[bytes | memoryview]:
        """Yield complete payloads. Raises FrameError for a wrong greeting or an impossible length."""
        if self._large is not None:
            used = self._fill(data, 0)
            if self._filled < len(self._large):
                return
            filled, self._large = self._large, None
            yield filled
            data = data[used:]
        elif self._rest:
            self._rest.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._rest)
            self._rest = []
        position, size = 0, len(data)
        if self.silent:
            if not MAGIC.startswith(data[: len(MAGIC)]):
                raise FrameError("the peer does not speak this protocol, or another version of it")
            if size < len(MAGIC):
                self._rest, self._missing = [data], 1  # a stranger is seen at its first byte
                return
            self.silent = False
            position = len(MAGIC)
        need = 4
        while size - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if length > LIMIT:
                raise FrameError(f"a frame of {length} bytes is above the limit of {LIMIT}")
            need = 4 + length
            if position + need > size:
                if length > LARGE:
                    self._large, self._filled = memoryview(bytearray(length)), 0
                    self._fill(data, position + 4)
                    return
                break
            payload = memoryview(data) if length > LARGE else data
            yield payload[position + 4 : position + need]
            position += need
            need = 4
        if position < size:
            self._rest, self._missing = [data[position:]], need - (size - position)

    def _fill(self, data: bytes, position: int) -> int:
        """Put bytes into the large payload; how many."""
        assert self._large is not None
        used = min(len(data) - position, len(self._large) - self._filled)
        self._large[self._filled : self._filled + used] = memoryview(data)[position : position + used]
        self._filled += used
        return used


class FramedProtocol(asyncio.Protocol):
    """One end of a connection that carries frames. What is written before it is made waits, in order.

    `received` takes each payload and raises MsgspecError for what is none. `ended(why)` is called once, when the
    connection is lost, or ended here: because of a corrupt frame, or by `fail`.
    """

    LOST: ClassVar[str] = "the connection is lost"
    """Why it has ended, where the other end is gone."""

    def __init__(self, received: Callable[[bytes | memoryview], None], ended: Callable[[str], None]) -> None:
        self._received, self._ended = received, ended
        self._unframer = Unframer()
        self._transport: asyncio.Transport | None = None
        self.fault = ""  # what was wrong with a frame that ended the connection
        self._early: list[bytes] | None = [MAGIC]  # None: it has ended
        self._gathered: list[bytes] = []  # frames of `write_soon`

    @property
    def greeted(self) -> bool:
        """Whether the other end has spoken."""
        return not self._unframer.silent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Both ends begin with the magic bytes."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        self._transport.write(b"".join(self._early or ()))

    def data_received(self, data: bytes) -> None:
        """Take frames."""
        try:
            for payload in self._unframer.feed(data):
                self._received(payload)
        except (FrameError, msgspec.MsgspecError) as error:
            self.fault = str(error)
            self.fail(f"corrupt frame: {error}")

    def connection_lost(self, exc: BaseException | None) -> None:
        """The other end is gone. What it has sent is read, also where a write of ours has found that out first."""
        transport, self._transport = self._transport, None
        if transport is not None and isinstance(exc, ConnectionError):
            for data in _unread(transport):
                if self._early is not None:
                    self.data_received(data)
        self.fail(self.LOST)

    def fail(self, why: str) -> None:
        """End the connection at once."""
        if self._early is not None:
            self._early = None
            if self._transport is not None:
                self._transport.abort()
                self._transport = None
            self._ended(why)

    def write(self, payload: bytes) -> None:
        """Send a payload; dropped when the connection has ended. Raises FrameError above LIMIT."""
        if self._gathered:
            self._write_gathered()
        if self._transport is not None:
            if len(payload) > LARGE:
                self._transport.write(_head(payload))
                self._transport.write(payload)
            else:
                self._transport.write(pack(payload))
        elif self._early is not None:
            self._early.append(pack(payload))

    def write_soon(self, payload: bytes) -> None:
        """As `write`, together with others of this turn of the loop, at most AT_ONCE. Payloads keep their order."""
        if len(payload) > LARGE:
            self.write(payload)
            return
        self._gathered.append(pack(payload))
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._write_gathered)
        elif len(self._gathered) == AT_ONCE:
            self._write_gathered()

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        if self._transport is not None and gathered:
            self._transport.write(b"".join(gathered))
        elif self._early is not None:
            self._early += gathered

    def close(self) -> None:
        """Close the connection once what was sent has left."""
        self._write_gathered()
        if self._transport is not None:
            self._transport.close()


def _unread(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """What a connection has received and its loop has not read, up to `LIMIT`; nothing of TLS. Its socket is open."""
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return
    for _ in range(LIMIT // LARGE):
        try:
            data = os.read(sock.fileno(), LARGE)
        except OSError:
            return
        if not data:
            return
        yield data
