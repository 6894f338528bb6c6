"""Blocks of llama.cpp's KV cache as bytes and back, by a sequence that is used for nothing else. Blocks the caller.

A block's bytes are llama.cpp's state of a sequence that has the block's cells alone, with a checksum under the block's
sequence hash (`transfers`).
"""

import ctypes
from collections.abc import Callable
from typing import Any

from .transfers import CHECKSUM, Transfer, TransferFailed, Transfers, opened, sealed

_HEAD = 48
"""Bytes at the start of the state of one token that depend on the model and the kind of its cache alone."""


class Ranges(Transfers):
    """`scratch`: the sequence that it uses. `size`: tokens of a block."""

    def __init__(self, api: Any, context: Any, scratch: int, size: int) -> None:
        super().__init__()
        self._api, self._context, self._scratch, self._size = api, context, scratch, size
        self._memory = api.llama_get_memory(context)
        self._bytes = 0

    def measure(self, compute: Callable[[int], object]) -> None:
        """Learn how many bytes a block has."""
        compute(2)
        two = int(self._api.llama_state_seq_get_size(self._context, 0))
        self._api.llama_memory_seq_rm(self._memory, 0, 1, 2)
        one = int(self._api.llama_state_seq_get_size(self._context, 0))
        self._room(one)
        self._api.llama_state_seq_get_data(self._context, self._buffer, self._bytes, 0)
        self.head = bytes(self._buffer[:_HEAD])
        self._room(one + (self._size - 1) * (two - one))
        self.export_bytes = self._bytes + CHECKSUM

    def run(self, transfer: Transfer) -> None:
        """Do it, and say what came of it. Never raises."""
        super().run(transfer)
        self._api.llama_memory_seq_rm(self._memory, self._scratch, -1, -1)

    def _room(self, count: int) -> None:
        self._bytes, self._buffer = count, (ctypes.c_uint8 * count)()

    def export_(self, transfer: Transfer) -> bytes:
        """The bytes of a block. Raises TransferFailed."""
        api, scratch = self._api, self._scratch
        api.llama_memory_seq_cp(self._memory, transfer.slot, scratch, transfer.start, transfer.end)
        if api.llama_state_seq_get_data(self._context, self._buffer, self._bytes, scratch) != self._bytes:
            raise TransferFailed(f"llama.cpp did not export positions {transfer.start} to {transfer.end}")
        return sealed(memoryview(self._buffer), transfer.name)

    def import_(self, transfer: Transfer, data: bytes) -> None:
        """Make them cells of the slot. Raises TransferFailed."""
        api, scratch = self._api, self._scratch
        if len(data) != self.export_bytes:
            raise TransferFailed(f"a block has {self.export_bytes} bytes, not {len(data)}")
        state, count = opened(data, transfer.name)
        if api.llama_state_seq_set_data(self._context, state, count, scratch) != count:
            raise TransferFailed("llama.cpp refuses the bytes")
        ends = api.llama_memory_seq_pos_min(self._memory, scratch), api.llama_memory_seq_pos_max(self._memory, scratch)
        if ends != (transfer.start, transfer.end - 1):
            raise TransferFailed(f"the bytes are those of positions {ends[0]} to {ends[1] + 1}")
        api.llama_memory_seq_cp(self._memory, scratch, transfer.slot, transfer.start, transfer.end)
