"""TensorRT-LLM's events of KV blocks (dicts, read by polling) in the form of the other engines."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..adapter.wire import AllBlocksCleared, BlockRemoved, BlockStored, Event

log = logging.getLogger("dynamod.engine")


class Events:
    """The events of all ranks. `total_blocks`: on the device, of all ranks, once they have been reported.

    A model with sliding windows reports blocks per window: only those of the widest count, which hold whole prefixes.
    Names of blocks are hashes, each stored once until it is removed; what is said again changes nothing. Events that
    were lost cannot be had again: the rank begins anew then.
    """

    def __init__(self) -> None:
        self._created: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._known: dict[int, set[int]] = {}
        self._window = 0

    @property
    def total_blocks(self) -> int:
        """Blocks on the device."""
        return sum(self._created.values())

    def read(self, event: Mapping[str, Any], block_size: int) -> Iterator[tuple[int, Event]]:
        """The rank of an event, and what it means; nothing for what routers need not know."""
        rank, number, data = int(event.get("attention_dp_rank") or 0), int(event["event_id"]), event["data"]
        window = int(event.get("window_size") or 0)
        expected = self._next.get(rank, number)
        self._next[rank] = number + 1
        if number != expected:
            log.warning("TensorRT-LLM has lost events of KV blocks (%d instead of %d)", number, expected)
            yield rank, self._clear(rank)
        if window > self._window:
            self._window = window
            for other in list(self._known):
                yield other, self._clear(other)
        if window < self._window:
            return
        if data["type"] == "created":
            self._created[rank] = int(data["num_blocks_per_cache_level"][0])
        elif data["type"] == "stored":
            yield from ((rank, one) for one in self._stored(rank, data, block_size))
        elif data["type"] == "removed":
            known = self._known.get(rank, set())
            gone = [name for name in data["block_hashes"] if name in known]
            known.difference_update(gone)
            yield rank, BlockRemoved(gone)

    def _stored(self, rank: int, data: Mapping[str, Any], block_size: int) -> Iterator[BlockStored]:
        """A row of blocks, as far as they are full and of plain tokens: a prefix of it."""
        known, parent = self._known.setdefault(rank, set()), data.get("parent_hash")
        for block in data["blocks"]:
            ids = [token["token_id"] for token in block["tokens"] if not token.get("token_extra_id")]
            if len(ids) != block_size or len(block["tokens"]) != block_size or block.get("lora_id") is not None:
                return
            name = block["block_hash"]
            if name not in known:
                known.add(name)
                yield BlockStored([name], parent, ids, block_size)
            parent = name

    def _clear(self, rank: int) -> AllBlocksCleared:
        self._known.pop(rank, None)
        return AllBlocksCleared()
