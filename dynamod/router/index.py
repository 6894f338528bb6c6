"""Which worker has which KV blocks, by their events: a flat map from sequence hash to a set of workers.

The sequence hash of a block stands for the whole prefix before it, so no tree is needed; a prefix counts only as far as
a worker has it without a gap.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dynamod.kvcache.hashes import chain
from dynamod.message.kv_events import CacheEvent, Removed, Snapshot, Stored

from .bitsets import Bitset, prefixes

MAX_BLOCKS = 1 << 22
"""Blocks that an index keeps by default, over all workers; about 110 bytes each."""


class IndexStatistics(msgspec.Struct, frozen=True):
    """Blocks known, names of blocks over all workers, workers; events taken, and those after an unknown parent."""

    blocks: int
    names: int
    workers: int
    events: int
    orphans: int
    forgotten: int


class BlockIndex:
    """`apply` events, `find` prefixes. Above `max_blocks` the oldest blocks are forgotten.

    `bits`: those of another index, which gives workers their bits and takes them back.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, bits: Bitset | None = None) -> None:
        self._max = max_blocks
        self.bits = self._bits = Bitset() if bits is None else bits
        self._own = bits is None
        self._masks: dict[int, int] = {}
        self.mask = self._masks.get  # of the workers that have a block
        self._names: dict[int, dict[int, int]] = {}  # worker -> engine's name -> sequence hash
        self._twice: dict[int, Counter[int]] = {}  # worker -> sequence hash -> further names of it
        self._events = self._orphans = self._forgotten = 0

    def apply(self, worker: int, event: CacheEvent) -> bool:
        """Take an event of a worker. False: its parent is not known, so its blocks cannot be placed."""
        self._events += 1
        if isinstance(event, Stored):
            return self._store(worker, event)
        if isinstance(event, Removed):
            self._remove(worker, event.blocks)
        elif isinstance(event, Snapshot):
            self._place(worker, event.blocks, event.hashes)
        else:
            self.remove_worker(worker)
        return True

    def find(self, blocks: Iterable[int]) -> dict[int, int]:
        """For a prompt's sequence hashes: how many of them each worker has from the start, without a gap."""
        return prefixes(self.mask, self._bits, blocks)

    def count(self, worker: int) -> int:
        """Names of blocks that a worker has."""
        return len(self._names.get(worker, ()))

    def remove_worker(self, worker: int) -> None:
        """A worker is gone, or its cache is empty."""
        names = self._names.pop(worker, None)
        if names is None:
            return
        self._leave(worker, names.values())
        self._twice.pop(worker, None)
        if self._own:
            self._bits.drop(worker)

    def dump(self) -> Iterator[tuple[int, Snapshot]]:
        """For each worker the event that states all of it to an index that does not know the worker."""
        for worker, names in self._names.items():
            yield worker, Snapshot(tuple(names), tuple(names.values()))

    def load(self, events: Iterable[tuple[int, CacheEvent]]) -> None:
        """Take what `dump` gave."""
        for worker, event in events:
            self.apply(worker, event)

    def statistics(self) -> IndexStatistics:
        """A snapshot."""
        names = sum(map(len, self._names.values()))
        return IndexStatistics(len(self._masks), names, len(self._names), self._events, self._orphans, self._forgotten)

    def _store(self, worker: int, event: Stored) -> bool:
        parent = None
        if event.parent is not None:
            parent = self._names.get(worker, {}).get(event.parent)
            if parent is None:
                self._orphans += 1
                return False
        self._place(worker, event.blocks, chain(event.local, parent))
        return True

    def _place(self, worker: int, names: Sequence[int], blocks: Sequence[int]) -> None:
        bit, masks = self._bits.of(worker), self._masks
        known = self._names.setdefault(worker, {})
        get, last, wider = masks.get, 0, bit
        for name, block in zip(names, blocks, strict=True):
            mask = get(block, 0)
            if mask & bit:
                if known.get(name) == block:
                    continue
                self._twice.setdefault(worker, Counter())[block] += 1
            before = known.get(name)
            if before is not None and before != block:
                self._remove(worker, (name,))
            known[name] = block
            if mask is not last:  # blocks of one prefix mostly are at the same workers, and share one integer
                last, wider = mask, mask | bit if mask else bit
            masks[block] = wider
        if len(masks) > self._max:
            self._forget(len(masks) - self._max * 9 // 10)

    def _remove(self, worker: int, names: Iterable[int]) -> None:
        known = self._names.get(worker)
        if known is None:
            return
        self._leave(worker, self._gone(known, self._twice.get(worker), names))

    @staticmethod
    def _gone(known: dict[int, int], twice: Counter[int] | None, names: Iterable[int]) -> Iterator[int]:
        """Take names away; the blocks that have none left."""
        for name in names:
            block = known.pop(name, None)
            if block is None:
                continue
            if twice is not None and twice[block]:
                twice[block] -= 1
                continue
            yield block

    def _leave(self, worker: int, blocks: Iterable[int]) -> None:
        """A worker no longer has these blocks."""
        masks, others = self._masks, ~self._bits.of(worker)
        get, last, left = masks.get, 0, 0
        for block in blocks:
            mask = get(block, 0)
            if mask is not last:  # as in `_place`
                last, left = mask, mask & others
            if left:
                masks[block] = left
            else:
                masks.pop(block, None)

    def _forget(self, surplus: int) -> None:
        """Drop the blocks that have been known longest; their names stay until the workers take them back."""
        for block in [block for block, _ in zip(self._masks, range(surplus), strict=False)]:
            del self._masks[block]
        self._forgotten += surplus
