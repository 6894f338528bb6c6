"""Blocks of llama.cpp's KV cache as bytes and back, by a sequence that is used for nothing else. Blocks the caller.

A block's bytes are llama.cpp's state of a sequence that has the block's cells alone, and behind it eight bytes: xxh3
of that state, with the block's sequence hash as seed. So damaged bytes, and those of another block, do not reach
llama.cpp, which aborts the process for some of them.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_digest

_HEAD = 48
"""Bytes at the start of the state of one token that depend on the model and the kind of its cache alone."""


_SECONDS = 0.001
"""Of a block, before there was one."""


class TransferFailed(Exception):
    """A block could not be exported or imported."""


@dataclass(slots=True)
class Transfer:
    """Block `name` in positions `start` to `end` of a slot. `data`: what is imported there; None: it is exported.

    `told` gets the bytes that were exported (none after an import), or why it failed.
    """

    slot: int
    start: int
    end: int
    name: int
    data: bytes | None
    told: Callable[[bytes | Exception], object]


class Ranges:
    """`scratch`: the sequence that it uses. `size`: tokens of a block. `head`: says what kind of cache this is.

    `export_seconds`, `import_seconds`: what a block takes, by the last ones.
    """

    def __init__(self, api: Any, context: Any, scratch: int, size: int) -> None:
        self._api, self._context, self._scratch, self._size = api, context, scratch, size
        self._memory = api.llama_get_memory(context)
        self._bytes = 0
        self.head = b""
        self.export_seconds = self.import_seconds = _SECONDS

    @property
    def block_bytes(self) -> int:
        """Of an exported block; known once it was measured."""
        return self._bytes + 8

    def measure(self, compute: Callable[[int], object]) -> None:
        """Learn how many bytes a block has. `compute(position)` adds a token to slot 0, which is empty."""
        sizes: list[int] = []
        for position in range(2):
            compute(position)
            sizes.append(int(self._api.llama_state_seq_get_size(self._context, 0)))
            if not position:
                self._room(sizes[0])
                self._api.llama_state_seq_get_data(self._context, self._buffer, self._bytes, 0)
                self.head = bytes(self._buffer[:_HEAD])
        self._room(sizes[0] + (self._size - 1) * (sizes[1] - sizes[0]))

    def run(self, transfer: Transfer) -> None:
        """Do it, and say what came of it. Never raises."""
        result: bytes | Exception
        began = time.monotonic()
        try:
            result = self._export(transfer) if transfer.data is None else self._import(transfer, transfer.data)
        except Exception as error:
            result = error
        finally:
            self._api.llama_memory_seq_rm(self._memory, self._scratch, -1, -1)
        took = time.monotonic() - began
        if transfer.data is None:
            self.export_seconds += (took - self.export_seconds) / 8
        else:
            self.import_seconds += (took - self.import_seconds) / 8
        transfer.told(result)

    def _room(self, count: int) -> None:
        self._bytes, self._buffer = count, (ctypes.c_uint8 * count)()

    def _export(self, transfer: Transfer) -> bytes:
        api, scratch = self._api, self._scratch
        api.llama_memory_seq_cp(self._memory, transfer.slot, scratch, transfer.start, transfer.end)
        if api.llama_state_seq_get_data(self._context, self._buffer, self._bytes, scratch) != self._bytes:
            raise TransferFailed(f"llama.cpp did not export positions {transfer.start} to {transfer.end}")
        state = memoryview(self._buffer)
        return b"".join((state, xxh3_64_digest(state, transfer.name)))

    def _import(self, transfer: Transfer, data: bytes) -> bytes:
        api, scratch, count = self._api, self._scratch, self._bytes
        if len(data) != self.block_bytes:
            raise TransferFailed(f"a block has {self.block_bytes} bytes, not {len(data)}")
        if xxh3_64_digest(memoryview(data)[:count], transfer.name) != data[count:]:
            raise TransferFailed("the bytes are damaged, or those of another block")
        state = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        if api.llama_state_seq_set_data(self._context, state, count, scratch) != count:
            raise TransferFailed("llama.cpp refuses the bytes")
        ends = api.llama_memory_seq_pos_min(self._memory, scratch), api.llama_memory_seq_pos_max(self._memory, scratch)
        if ends != (transfer.start, transfer.end - 1):
            raise TransferFailed(f"the bytes are those of positions {ends[0]} to {ends[1] + 1}")
        api.llama_memory_seq_cp(self._memory, scratch, transfer.slot, transfer.start, transfer.end)
        return b""
