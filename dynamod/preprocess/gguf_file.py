"""Metadata of a GGUF file, read straight from its header; and what an ingress needs of it as a small GGUF file.

The `gguf` package's GGUFReader makes several numpy views per array item: 17 s for a vocabulary of 128,000 tokens on
the machine this was written on, after an import of 0.5 s. A header is a flat list of typed values, so it is read here
in one pass (about 0.1 s); a test compares with GGUFReader. Tensors are never touched.

Written values keep what they mean and not their width: integers of lists get 32 bits where they fit, floats 64, which
holds every number of the file exactly. So the checksum of the card stays the same.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import os
import re
import struct
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from dynamod.message.errors import UserError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_INT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64, _FLOAT64 = 5, 7, 8, 9, 10, 11, 12
_SIZE = struct.Struct("<Q").pack

_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)


class Metadata(dict[str, Any]):
    """Values by their keys, as `read_metadata` says. To be read only: readers of one file share it."""


_Identity = tuple[str, int, int, int]
"""Path, inode, bytes, time of the last change in nanoseconds."""

_shared: WeakValueDictionary[_Identity, Metadata] = WeakValueDictionary()


def shards(path: Path) -> list[Path]:
    """All files of a model that is split as `NAME-00001-of-00003.gguf`; else `path` alone."""
    found = _SHARD.search(path.name)
    if found is None:
        return [path]
    name, count = path.name[: found.start()], found[1]
    return [path.with_name(f"{name}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)]


def is_gguf(path: Path) -> bool:
    """Whether `path` is a GGUF file, by its suffix or its first four bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == _MAGIC


def read_metadata(path: Path) -> Metadata:
    """Return every key of the header: numbers, bools, str, and lists (numbers) or lists of str (strings).

    A file that has not changed is not read again while a caller holds what was read. Raises UserError when the file is
    missing, cut short or no GGUF file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = os.fstat(file.fileno())
            identity = (os.path.abspath(path), found.st_ino, found.st_size, found.st_mtime_ns)
            if (metadata := _shared.get(identity)) is None:
                metadata = _shared[identity] = _Header(data).read()
            return metadata
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (struct.error, ValueError, KeyError, OverflowError) as error:
        raise UserError(f"{path} is not a readable GGUF file ({error})", "download it again") from None


class _Header:
    """A cursor over the header's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4
        if data[:4] != _MAGIC:
            raise ValueError("it does not start with GGUF")
        # A file written for the other byte order shows its small version number in the upper half.
        self._order = "<" if struct.unpack_from("<I", data, 4)[0] & 0xFFFF else ">"
        self._size = struct.Struct(self._order + "Q")

    def read(self) -> Metadata:
        [version] = self._numbers("I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, known are {_VERSIONS}")
        _tensors, keys = self._numbers("Q", 2)
        return Metadata({self._strings(1)[0]: self._values(*self._numbers("I"))[0] for _ in range(keys)})

    def _numbers(self, code: str, count: int = 1) -> list[Any]:
        form = f"{self._order}{count}{code}"
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return list(values)

    def _values(self, kind: int, count: int = 1) -> list[Any]:
        if count > len(self._data):
            raise ValueError("an array is longer than the file")
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._values(*self._numbers("I"), *self._numbers("Q")) for _ in range(count)]
        return self._numbers(_SCALARS[kind], count)

    def _strings(self, count: int) -> list[str]:
        """The hot loop: once per vocabulary entry and merge."""
        data, at, size_at, found = self._data, self._at, self._size.unpack_from, list[str]()
        end_of_file = len(data)
        for _ in range(count):
            start = at + 8
            at = start + size_at(data, at)[0]
            if at > end_of_file:
                raise ValueError("a string ends after the end of the file")
            found.append(data[start:at].decode("utf-8", "replace"))
        self._at = at
        return found


def needed(metadata: Metadata) -> dict[str, Any]:
    """The keys that `gguf_source` and `gguf_tokenizer` read."""
    context = f"{metadata.get('general.architecture', '')}.context_length"
    return {
        key: value
        for key, value in metadata.items()
        if key.startswith(("tokenizer.", "general.sampling."))
        or key in ("general.architecture", "general.name", context)
    }


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
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
    return struct.pack(f"<{len(values)}{_SCALARS[kind]}", *values)


def _array(values: list[Any]) -> bytes:
    kind = _kind(values)
    return struct.pack("<IQ", kind, len(values)) + _values(kind, values)


def _strings(texts: Iterable[str]) -> bytes:
    """The hot part, once per vocabulary entry and merge, without a line of Python for each."""
    encoded = [text.encode() for text in texts]
    return b"".join(chain.from_iterable(zip(map(_SIZE, map(len, encoded)), encoded, strict=True)))
