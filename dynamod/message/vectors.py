"""Vectors as packed little-endian 32-bit floats: the only form in which they travel, and OpenAI's base64 form."""

import math
import sys
from array import array
from collections.abc import Iterable
from operator import mul

MOST_BYTES = 48 << 20
"""Of the vectors of one answer, which travel together: a frame has a limit."""
_CODE = "f"
assert array(_CODE).itemsize == 4  # true on every platform CPython supports today


def pack(values: Iterable[float]) -> bytes:
    """Pack the numbers of a vector. Raises TypeError for what is no number."""
    packed = array(_CODE, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(data: bytes) -> "array[float]":
    """The numbers of `pack`. Raises ValueError when the length is no multiple of 4."""
    values: array[float] = array(_CODE)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def check_size(packed: Iterable[bytes]) -> None:
    """Raises ValueError for more vectors than travel together."""
    size = sum(map(len, packed))
    if size > MOST_BYTES:
        raise ValueError(f"the vectors have {size >> 20} MiB, above {MOST_BYTES >> 20}; ask for fewer at once")


def unit(values: Iterable[float]) -> list[float]:
    """The vector of length 1 in this direction. Raises ValueError when there is none: it is zero, or not finite."""
    found = [float(value) for value in values]
    length = math.sqrt(sum(map(mul, found, found)))
    if not (0 < length < math.inf):
        raise ValueError("a vector without a direction")
    return [value / length for value in found]


def cut(data: bytes, dimensions: int) -> bytes:
    """The first `dimensions` numbers of a packed vector, of unit length again. Raises ValueError."""
    values = unpack(data)
    if dimensions > len(values):
        raise ValueError(f"the vector has {len(values)} numbers")
    return pack(unit(values[:dimensions]))


def cosine(one: "array[float]", other: "array[float]") -> float:
    """How alike two vectors of unit length are, from -1 to 1. Raises ValueError when their lengths differ."""
    if len(one) != len(other):
        raise ValueError(f"vectors of {len(one)} and {len(other)} numbers")
    return max(-1.0, min(1.0, float(sum(map(mul, one, other)))))
