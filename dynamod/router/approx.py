"""The index for engines that publish no events: what was sent to a worker counts as cached there for a while."""

from collections import OrderedDict
from collections.abc import Iterable

from dynamod.message.kv_events import Removed, Snapshot

from .index import BlockIndex, IndexStatistics

TTL = 120.0
MAX_BLOCKS = 1 << 20
PRUNE = 0.8
"""Share of MAX_BLOCKS that is left when there are more."""


class ApproxIndex:
    """`sent` records a decision; entries end `ttl` seconds after they were sent last, and the oldest above the cap."""

    def __init__(self, ttl: float = TTL, max_blocks: int = MAX_BLOCKS) -> None:
        self._ttl, self._max = ttl, max_blocks
        self._index = BlockIndex()
        self._until: OrderedDict[tuple[int, int], float] = OrderedDict()

    def sent(self, worker: int, blocks: Iterable[int], now: float) -> None:
        """A prompt with these sequence hashes goes to a worker."""
        self.expire(now)
        names = tuple(blocks)
        self._index.apply(worker, Snapshot(names, names))
        until = now + self._ttl
        for block in names:
            key = (worker, block)
            self._until[key] = until
            self._until.move_to_end(key)
        if len(self._until) > self._max:
            while len(self._until) > self._max * PRUNE:
                self._forget(self._until.popitem(last=False)[0])

    def find(self, blocks: Iterable[int], now: float) -> dict[int, int]:
        """For a prompt's sequence hashes: how many of them each worker has from the start, as far as is guessed."""
        self.expire(now)
        return self._index.find(blocks)

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        until = self._until
        while until:
            key = next(iter(until))
            if until[key] > now:
                return
            del until[key]
            self._forget(key)

    def count(self, worker: int) -> int:
        """Blocks that a worker is guessed to have."""
        return self._index.count(worker)

    def remove_worker(self, worker: int) -> None:
        """A worker is gone."""
        self._index.remove_worker(worker)
        for key in [key for key in self._until if key[0] == worker]:
            del self._until[key]

    def __len__(self) -> int:
        return len(self._until)

    def statistics(self) -> IndexStatistics:
        """A snapshot."""
        return self._index.statistics()

    def _forget(self, key: tuple[int, int]) -> None:
        self._index.apply(key[0], Removed((key[1],)))
