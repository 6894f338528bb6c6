"""Frames on a byte stream: 4 bytes little-endian length, then that many bytes of MessagePack."""

import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
MAGIC = b"dynamod\x01"
"""First bytes each side sends: a stranger on the socket is seen at once, and so is another protocol version."""

LIMIT = 64 * 1024 * 1024
"""Largest frame. A prompt of a million tokens takes 4 MB; what is larger is corrupt."""


class FrameError(ValueError):
    """The bytes are no frames of ours."""


def pack(payload: bytes) -> bytes:
    """One frame. Raises FrameError above LIMIT."""
    if len(payload) > LIMIT:
        raise FrameError(f"a frame of {len(payload)} bytes is above the limit of {LIMIT}")
    return _LENGTH.pack(len(payload)) + payload


class Unframer:
    """Cuts a byte stream into payloads. `feed` returns those that are complete; the rest waits for more bytes."""

    def __init__(self, *, magic: bool = True) -> None:
        self._rest = b""
        self._magic = magic

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield complete payloads. Raises FrameError for a wrong greeting or an impossible length."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position, size = 0, len(data)
        if self._magic:
            if size < len(MAGIC):
                if not MAGIC.startswith(data):
                    raise FrameError("the peer does not speak this protocol")
                self._rest = data
                return
            if not data.startswith(MAGIC):
                raise FrameError("the peer does not speak this protocol, or another version of it")
            self._magic = False
            position = len(MAGIC)
        while size - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if length > LIMIT:
                raise FrameError(f"a frame of {length} bytes is above the limit of {LIMIT}")
            end = position + 4 + length
            if end > size:
                break
            yield data[position + 4 : end]
            position = end
        if position < size:
            self._rest = data[position:]
