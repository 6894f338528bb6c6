"""Indexers: which worker has which blocks, for files that choose an instance themselves. Over `router.index`."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynamod.ingress.subscriptions import LOOK, EventSubscriptions
from dynamod.kvcache.hashes import block_hashes, chain
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.kv_events import CacheEvent, Cleared, Removed, Snapshot, Stored, WorkerEvent
from dynamod.router.approx import TTL, ApproxIndex
from dynamod.router.index import BlockIndex

from .publishers import MASK, whole_number

if TYPE_CHECKING:
    from .runtime import Component


@dataclass(frozen=True, slots=True)
class OverlapScores:
    """`scores`: worker to how many blocks it has from the start, without a gap; `frequencies`: per block, how many
    workers have all up to it.
    """

    scores: dict[int, int] = field(default_factory=dict)
    frequencies: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, found: Mapping[int, int], *, early_exit: bool = False) -> "OverlapScores":
        """From what an index has found. `early_exit`: no deeper than to the block that only one worker has."""
        depths = Counter(found.values())
        left, frequencies = sum(depths.values()), list[int]()
        for depth in range(1, max(found.values(), default=0) + 1):
            frequencies.append(left)
            if early_exit and left == 1:
                break
            left -= depths[depth]
        most = len(frequencies)
        return cls({worker: min(depth, most) for worker, depth in found.items()}, frequencies)


class RadixTree:
    """An index that the file feeds itself, with events as JSON: `{"event_id": 1, "data": {"stored": {"parent_hash":
    null, "blocks": [{"block_hash": 1, "tokens_hash": 2}]}}}`, `{"removed": {"block_hashes": [1]}}` or `"cleared"`.
    """

    def __init__(self) -> None:
        self._index = BlockIndex()

    def find_matches(self, sequence: Iterable[int], early_exit: bool = False) -> OverlapScores:
        """For local hashes of a prompt's blocks (`compute_block_hash_for_seq_py`)."""
        return OverlapScores.of(self._index.find(chain(sequence)), early_exit=early_exit)

    def apply_event(self, worker_id: int, kv_cache_event_bytes: bytes | str) -> None:
        """Take an event of a worker. Raises UserError for what is none, and for an unknown parent."""
        event = _event(kv_cache_event_bytes)
        if not self._index.apply(worker_id, event):
            raise UserError(
                f"worker {worker_id} has no block {getattr(event, 'parent', None)}", "give its parents first"
            )

    def remove_worker(self, worker_id: int) -> None:
        """A worker is gone."""
        self._index.remove_worker(worker_id)

    def clear_all_blocks(self, worker_id: int) -> None:
        """A worker's cache is empty."""
        self._index.remove_worker(worker_id)


class _ComponentIndexer(ABC):
    """What both indexers of a component's workers share."""

    def __init__(self, component: "Component", block_size: int) -> None:
        self._size = whole_number("block_size", block_size)
        self._connection = component.runtime.connection()

    def block_size(self) -> int:
        """Tokens per block."""
        return self._size

    async def find_matches_for_request(self, token_ids: Iterable[int], lora_id: int | None = 0) -> OverlapScores:
        """For a prompt. With an adapter (`lora_id` above 0) none: their blocks are not published."""
        if lora_id:
            return OverlapScores()
        return OverlapScores.of(self._find(block_hashes(tokens.pack(token_ids), self._size)))

    @abstractmethod
    def _find(self, hashes: Sequence[int]) -> Mapping[int, int]: ...


class KvIndexer(_ComponentIndexer):
    """What the workers of a component publish of their caches, as the routers of frontends get it.

    It learns while the process's loop runs, from instances of all nodes. Ends with the runtime. Raises UserError for a
    block size below 1 and without a connection.
    """

    def __init__(self, component: "Component", block_size: int) -> None:
        super().__init__(component, block_size)
        connection = self._connection
        self._place = (component.namespace, component.name)
        self._process_context = process_context = connection.process_context
        self._index = BlockIndex()
        self._live: dict[tuple[str, int], Instance] = {}
        self._feeds = EventSubscriptions(process_context.transport, connection.spawn, connection.loop.time, self._news)
        process_context.view.on_change(self._follow)
        connection.spawn(self._look(), "look at feeds")
        self._follow()

    async def find_matches(self, sequence: Iterable[int]) -> OverlapScores:
        """For local hashes of a prompt's blocks."""
        return OverlapScores.of(self._index.find(chain(sequence)))

    def _find(self, hashes: Sequence[int]) -> Mapping[int, int]:
        return self._index.find(hashes)

    def _follow(self) -> None:
        view = self._process_context.view
        live = {
            (one.endpoint, one.instance_id): one
            for one in view.all_instances()
            if (one.namespace, one.component) == self._place and not view.quarantined(one)
        }
        before, self._live = self._live, live
        for key in before.keys() - live.keys():
            self._feeds.drop(key)
        for worker in {worker for _, worker in before} - {worker for _, worker in live}:
            self._index.remove_worker(worker)
        for key, instance in live.items():
            if before.get(key) != instance:
                self._feeds.follow(key, instance)

    def _news(self, key: tuple[str, int], items: Sequence[WorkerEvent], _anew: bool) -> None:
        for item in items:
            if isinstance(item, Stored | Removed | Cleared | Snapshot):
                self._index.apply(key[1], item)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self._feeds.look()


class ApproxKvIndexer(_ComponentIndexer):
    """The same guessed: what was sent to a worker is taken to be there for `ttl_secs` seconds."""

    def __init__(self, component: "Component", block_size: int, ttl_secs: float = TTL) -> None:
        if not ttl_secs > 0:
            raise UserError(f"ttl_secs is {ttl_secs!r}", "give seconds above 0")
        super().__init__(component, block_size)
        self._now = self._connection.loop.time
        self._index = ApproxIndex(float(ttl_secs))

    def _find(self, hashes: Sequence[int]) -> Mapping[int, int]:
        return self._index.find(hashes, self._now())

    async def process_routing_decision_for_request(
        self, token_ids: Iterable[int], lora_id: int | None, worker_id: int
    ) -> None:
        """A prompt goes to a worker. Prompts for adapters (`lora_id` above 0) have no effect."""
        if not lora_id:
            self._index.sent(worker_id, block_hashes(tokens.pack(token_ids), self._size), self._now())


def _event(text: bytes | str) -> CacheEvent:
    try:
        data = json.loads(text)["data"]
        if data == "cleared":
            return Cleared()
        if "stored" in data:
            parent, blocks = data["stored"]["parent_hash"], data["stored"]["blocks"]
            names = tuple(one["block_hash"] & MASK for one in blocks)
            local = tuple(one["tokens_hash"] & MASK for one in blocks)
            return Stored(None if parent is None else parent & MASK, names, local)
        return Removed(tuple(name & MASK for name in data["removed"]["block_hashes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"no event of a KV cache: {error!r}", 'give {"event_id": 1, "data": {"stored": ...}}') from None
