"""What both ends of a connection say: 4 bytes little-endian length, then that many bytes of MessagePack.

    reader   Hello                 Credit...  Idle...         Done
    source          Accept  Head Piece Piece...    Idle   End
                    Failed at any time, instead of all that would follow

The bytes of a piece follow its frame, or lie in the memory that both ends share.
"""

import struct
from typing import Annotated

import msgspec
from xxhash import xxh3_64_intdigest

VERSION = 2

WINDOW = 4 * 1024 * 1024
"""Bytes of blocks that may be under way: sent, and not credited by the reader."""

PIECE = 1024 * 1024
"""Largest piece of a block that is sent at once."""

BLOCK_LIMIT = 1024 * 1024 * 1024
"""Largest block."""

FRAME_LIMIT = 16 * 1024
"""Largest frame, without the bytes of a piece. It is checked before anything is kept, so a stranger is seen at once."""

WHY_LIMIT = 1000
"""Characters of a reason. A character takes up to four bytes."""

AGENT_LIMIT = 15 * 1024
"""Bytes that describe a NIXL agent."""

_LENGTH = struct.Struct("<I")

_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=WINDOW)]
_Signature = Annotated[bytes, msgspec.Meta(max_length=1024)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The reader wants the blocks of a session from index `first` on. The name of the session is the permission.

    `signature`: of the reader's node (`transport.signing`); empty: none. Older sources skip it.
    """

    version: int
    session: _Text
    layout: _Text
    first: _Count
    signature: _Signature = b""

    def content(self) -> tuple[bytes, bytes, bytes]:
        """What is signed."""
        return self.session.encode(), self.layout.encode(), str(self.first).encode()


class Accept(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The source begins."""


class Head(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A block begins: `size` bytes follow in pieces. `checksum`: of name and bytes."""

    name: _Count
    size: Annotated[int, msgspec.Meta(ge=0, le=BLOCK_LIMIT)]
    checksum: _Count


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The next bytes of the block."""

    size: _Size


class Credit(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The reader has room for so many more bytes than WINDOW and the credits before. `taken`: as of Idle."""

    size: _Size
    taken: _Count = 0


class Idle(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The source lives, though it may wait for its engine or for room. A reader that takes blocks, or waits, answers.

    `taken`: the blocks before this index have been taken from the reader; none of them is needed any more.
    """

    taken: _Count = 0


class End(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """That was the last block. `count`: of the session, from index 0."""

    count: _Count


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """No more blocks come. `kind`: of TransferError."""

    kind: _Text
    why: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The reader has all blocks."""


class Region(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """After Hello, with NIXL: the source's agent, its memory for pieces, and where the ring of this connection is."""

    agent: Annotated[bytes, msgspec.Meta(max_length=AGENT_LIMIT)]
    address: _Count


Frame = Hello | Accept | Head | Piece | Credit | Idle | End | Failed | Done | Region

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class FrameError(ValueError):
    """The bytes are no frames of ours."""


def pack(frame: Frame) -> bytes:
    """One frame. Raises FrameError above FRAME_LIMIT."""
    payload = _encoder.encode(frame)
    if len(payload) > FRAME_LIMIT:
        raise FrameError(f"a frame of {len(payload)} bytes is above the limit of {FRAME_LIMIT}")
    return _LENGTH.pack(len(payload)) + payload


def unpack(data: memoryview) -> tuple[Frame, int] | None:
    """The first frame and its bytes with the length; None: more are needed. Raises FrameError."""
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    if length > FRAME_LIMIT:
        raise FrameError(f"a frame of {length} bytes is above the limit of {FRAME_LIMIT}")
    end = _LENGTH.size + length
    if len(data) < end:
        return None
    try:
        return _decoder.decode(data[_LENGTH.size : end]), end
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from None


def checksum(name: int, data: bytes) -> int:
    """The xxh3_64 of a block: of its bytes, with its name as the seed."""
    return xxh3_64_intdigest(data, name)
