"""What is common to KV blocks and whole states as bytes: one transfer at a time, and the checksum after the bytes.

After llama.cpp's state there are eight bytes: xxh3 of that state, with the name of what it is as seed. So damaged
bytes, and those of something else, do not reach llama.cpp, which aborts the process for some of them.
"""

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_digest

CHECKSUM = 8
"""Bytes after the state."""

_SECONDS = 0.001
"""Of a transfer, before there was one."""


class TransferFailed(Exception):
    """A block, or a state, could not be exported or imported."""


@dataclass(slots=True)
class Transfer:
    """What is called `name`, in positions `start` to `end` of a slot. `data`: it is imported; None: it is exported.

    `told` gets the bytes that were exported (none after an import), or why it failed.
    """

    slot: int
    start: int
    end: int
    name: int
    data: bytes | None
    told: Callable[[bytes | Exception], object]


class Transfers(ABC):
    """`head`: says what kind of cache this is. `export_seconds`, `import_seconds`: what one takes, by the last ones.

    `export_bytes`: what one has, at least.
    """

    def __init__(self) -> None:
        self.head = b""
        self.export_bytes = 0
        self.export_seconds = self.import_seconds = _SECONDS

    @abstractmethod
    def measure(self, compute: Callable[[int], object]) -> None:
        """Learn what there is to know. `compute(count)` puts so many tokens in slot 0, which is empty; once."""

    @abstractmethod
    def export_(self, transfer: Transfer) -> bytes:
        """Raises TransferFailed."""

    @abstractmethod
    def import_(self, transfer: Transfer, data: bytes) -> None:
        """All or nothing. Raises TransferFailed."""

    def run(self, transfer: Transfer) -> None:
        """Do it, and say what came of it. Never raises."""
        result: bytes | Exception = b""
        began = time.monotonic()
        try:
            if transfer.data is None:
                result = self.export_(transfer)
            else:
                self.import_(transfer, transfer.data)
        except Exception as error:
            result = error
        took = time.monotonic() - began
        if transfer.data is None:
            self.export_seconds += (took - self.export_seconds) / 8
        else:
            self.import_seconds += (took - self.import_seconds) / 8
        transfer.told(result)


def sealed(state: memoryview, name: int) -> bytes:
    """A state with its checksum."""
    return b"".join((state, xxh3_64_digest(state, name)))


def opened(data: bytes, name: int) -> tuple[Any, int]:
    """A pointer to the state in `data`, which must live as long, and its length. Raises TransferFailed."""
    count = len(data) - CHECKSUM
    if count <= 0 or xxh3_64_digest(memoryview(data)[:count], name) != data[count:]:
        raise TransferFailed("the bytes are damaged, or those of another prompt")
    return ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8)), count
