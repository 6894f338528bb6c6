"""Token ids as packed little-endian int32 bytes: the only form in which they travel."""

import sys
from array import array
from collections.abc import Iterable, Sequence

_CODE = "i"
assert array(_CODE).itemsize == 4  # true on every platform CPython supports today


def pack(ids: Iterable[int]) -> bytes:
    """Pack ids, each in 0..2**31-1. Raises OverflowError for an id outside int32."""
    values = array(_CODE, ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack(data: bytes) -> Sequence[int]:
    """Return the ids of `pack`. Raises ValueError when the length is no multiple of 4."""
    values = array(_CODE)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def count(data: bytes) -> int:
    """Number of ids in packed bytes."""
    return len(data) >> 2
