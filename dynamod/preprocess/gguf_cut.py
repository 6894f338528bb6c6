"""What an ingress reads of a GGUF file, as a small GGUF file of its own: no tensors, and no keys that nobody reads.

Values keep what they mean and not their width: integers of lists are written with 32 bits where they fit, floats with
64, which holds every number of the original exactly. So the checksum of the card stays the same.
Format: see `gguf_file`.
"""

import struct
from collections.abc import Iterable
from itertools import chain
from typing import Any

from .gguf_file import Metadata

_SIZE = struct.Struct("<Q").pack
_INT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64, _FLOAT64 = 5, 7, 8, 9, 10, 11, 12
_NUMBERS = {_BOOL: "?", _INT32: "i", _UINT64: "Q", _INT64: "q", _FLOAT64: "d"}


def needed(metadata: Metadata) -> Metadata:
    """The keys that `gguf_source` and `gguf_tokenizer` read."""
    context = f"{metadata.get('general.architecture', '')}.context_length"
    return {
        key: value
        for key, value in metadata.items()
        if key.startswith(("tokenizer.", "general.sampling.")) or key in ("general.architecture", context)
    }


def to_bytes(metadata: Metadata) -> bytes:
    """A GGUF file with these keys and nothing else: `gguf_file.read_metadata` reads the same values from it."""
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, 0, len(metadata))]
    for key, value in metadata.items():
        kind = _kind([value])
        parts += (_strings([key]), struct.pack("<I", kind), _values(kind, [value]))
    return b"".join(parts)


def _kind(values: list[Any]) -> int:
    """One type that holds all of the values, which the reader took from one array."""
    first = values[0] if values else 0
    for kind, code in ((bool, _BOOL), (str, _STRING), (float, _FLOAT64), (list, _ARRAY)):
        if isinstance(first, kind):
            return code
    low, high = min(values, default=0), max(values, default=0)
    if low >= -(2**31) and high < 2**31:
        return _INT32
    return _UINT64 if low >= 0 else _INT64


def _values(kind: int, values: list[Any]) -> bytes:
    if kind == _STRING:
        return _strings(values)
    if kind == _ARRAY:
        return b"".join([_array(value) for value in values])
    return struct.pack(f"<{len(values)}{_NUMBERS[kind]}", *values)


def _array(values: list[Any]) -> bytes:
    kind = _kind(values)
    return struct.pack("<IQ", kind, len(values)) + _values(kind, values)


def _strings(texts: Iterable[str]) -> bytes:
    """The hot part, once per vocabulary entry and merge, without a line of Python for each."""
    encoded = [text.encode() for text in texts]
    return b"".join(chain.from_iterable(zip(map(_SIZE, map(len, encoded)), encoded, strict=True)))
