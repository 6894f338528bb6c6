"""The whole state of a sequence as bytes and back, of models that cannot give that of positions. Blocks the caller.

It is what llama.cpp keeps of a sequence: the state of recurrent layers, the cells in a sliding window, and all cells of
the other layers. The bytes are llama.cpp's, with a checksum under the state's name (`transfers`).
"""

import ctypes
from collections.abc import Callable
from typing import Any

from .transfers import CHECKSUM, Transfer, TransferFailed, Transfers, opened, sealed

_HEAD = 40
"""Bytes at the start of the state of one token that depend on the model and the kind of its memory alone."""


class States(Transfers):
    """Exports a slot, and imports into one that has nothing."""

    def __init__(self, api: Any, context: Any) -> None:
        super().__init__()
        self._api, self._context = api, context
        self._memory = api.llama_get_memory(context)

    def measure(self, compute: Callable[[int], object]) -> None:
        """Learn what the state of one token looks like."""
        compute(1)
        state = self._state(0)
        self.export_bytes = len(state) + CHECKSUM
        self.head = b"whole state" + len(state).to_bytes(8, "little") + bytes(state[:_HEAD])

    def export_(self, transfer: Transfer) -> bytes:
        """The bytes of a slot's state. Raises TransferFailed."""
        found = self._api.llama_memory_seq_pos_max(self._memory, transfer.slot)
        if found != transfer.end - 1:
            raise TransferFailed(f"the state is that of {found + 1} tokens, not {transfer.end}")
        return sealed(self._state(transfer.slot), transfer.name)

    def import_(self, transfer: Transfer, data: bytes) -> None:
        """Make it the state of the slot. Raises TransferFailed; the slot has nothing then."""
        api, slot = self._api, transfer.slot
        state, count = opened(data, transfer.name)
        if api.llama_state_seq_set_data(self._context, state, count, slot) != count:
            api.llama_memory_seq_rm(self._memory, slot, -1, -1)
            raise TransferFailed("llama.cpp refuses the bytes, or has no room for them")
        found = api.llama_memory_seq_pos_max(self._memory, slot)
        if found != transfer.end - 1:
            api.llama_memory_seq_rm(self._memory, slot, -1, -1)
            raise TransferFailed(f"the bytes are those of {found + 1} tokens, not {transfer.end}")

    def _state(self, slot: int) -> memoryview:
        """llama.cpp's bytes. Raises TransferFailed."""
        count = int(self._api.llama_state_seq_get_size(self._context, slot))
        buffer = (ctypes.c_uint8 * count)()
        if not count or self._api.llama_state_seq_get_data(self._context, buffer, count, slot) != count:
            raise TransferFailed(f"llama.cpp did not export the state of {count} bytes")
        return memoryview(buffer)
