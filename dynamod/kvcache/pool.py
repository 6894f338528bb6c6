"""A pool of KV blocks of one device: which are in use, which are cached, which go next.

Blocks are shared: a block in use has a count of the sequences that use it. One that nobody uses any more stays cached
until room is needed; the least recently freed goes first, and of one sequence the last block before those it needs.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import msgspec

Block = Hashable
"""A full block's sequence hash, or any unique object for a block that is not full yet."""


class PoolStatistics(msgspec.Struct, frozen=True):
    """Blocks: all, used by sequences, cached and free to go; totals of blocks found cached, newly made and evicted."""

    capacity: int
    active: int
    cached: int
    hits: int
    made: int
    evicted: int


class BlockPool:
    """`stored(parent, blocks)` is told of full blocks that are new, `removed(blocks)` of cached ones that go.

    `parent` is the block before the first one, None at the start of a prompt. With `caching` off nothing is kept for
    later, and nobody is told.
    """

    def __init__(
        self,
        capacity: int,
        *,
        caching: bool = True,
        stored: Callable[[int | None, Sequence[int]], None] = lambda _parent, _blocks: None,
        removed: Callable[[Sequence[int]], None] = lambda _blocks: None,
    ) -> None:
        self.capacity = capacity
        self._caching = caching
        self._stored, self._removed = stored, removed
        self._active: dict[Block, int] = {}
        self._cached: OrderedDict[Block, None] = OrderedDict()
        self._hits = self._made = self._evicted = 0

    @property
    def active(self) -> int:
        """Blocks that sequences use."""
        return len(self._active)

    @property
    def free(self) -> int:
        """Blocks that can be had: never used, or cached."""
        return self.capacity - len(self._active)

    def cached_prefix(self, blocks: Sequence[Block]) -> int:
        """How many of the first `blocks` are here, in use or cached."""
        active, cached = self._active, self._cached
        count = 0
        for block in blocks:
            if block not in active and block not in cached:
                break
            count += 1
        return count

    def needed(self, blocks: Sequence[Block]) -> int:
        """How many of `blocks` would have to be taken from `free`: all that no sequence uses now."""
        active = self._active
        return sum(block not in active for block in blocks)

    def take(self, blocks: Sequence[Block], parent: int | None = None, full: int | None = None) -> bool:
        """Use `blocks`, in their order behind block `parent`; False, with nothing changed, when they do not fit.

        The first `full` of them (all by default) are full, so they can be shared and told of.
        """
        if self.needed(blocks) > self.free:
            return False
        full = len(blocks) if full is None else full
        active, cached = self._active, self._cached
        fresh: list[int] = []
        behind = parent  # the block before the first of `fresh`
        before = parent
        for index, block in enumerate(blocks):
            count = active.get(block)
            if count is not None:
                active[block] = count + 1
                self._hits += 1
                new = False
            elif block in cached:
                del cached[block]
                active[block] = 1
                self._hits += 1
                new = False
            else:
                active[block] = 1
                self._made += 1
                new = True
            if index < full and isinstance(block, int):
                if new:
                    if not fresh:
                        behind = before
                    fresh.append(block)
                elif fresh:
                    self._tell(behind, fresh)
                    fresh = []
                before = block
        self._evict()
        if fresh:
            self._tell(behind, fresh)
        return True

    def fill(self, partial: Block, block: int, parent: int | None) -> None:
        """The partial block of a sequence is full now and has a name. An equal block that exists already is shared."""
        count = self._active.pop(partial)
        if block in self._active:
            self._active[block] += count
            return
        known = self._caching and block in self._cached
        if known:
            del self._cached[block]
        self._active[block] = count
        if not known:
            self._tell(parent, [block])

    def give_back(self, blocks: Sequence[Block]) -> None:
        """A sequence does not use `blocks` (in their order) any more. What is full stays cached while there is room."""
        active, cached = self._active, self._cached
        for block in reversed(blocks):
            count = active[block] - 1
            if count:
                active[block] = count
                continue
            del active[block]
            if self._caching and isinstance(block, int):
                cached[block] = None  # the end of a sequence goes before what it stands on

    def names(self) -> list[int]:
        """All full blocks that can be found here, in use or cached: none with caching off."""
        if not self._caching:
            return []
        return [block for blocks in (self._active, self._cached) for block in blocks if isinstance(block, int)]

    def clear(self) -> None:
        """Forget all cached blocks that nobody uses."""
        gone = [block for block in self._cached if isinstance(block, int)]
        self._cached.clear()
        if gone:
            self._removed(gone)

    def statistics(self) -> PoolStatistics:
        """A snapshot."""
        return PoolStatistics(
            self.capacity, len(self._active), len(self._cached), self._hits, self._made, self._evicted
        )

    def _tell(self, parent: int | None, blocks: Sequence[int]) -> None:
        if self._caching:
            self._stored(parent, blocks)

    def _evict(self) -> None:
        surplus = len(self._active) + len(self._cached) - self.capacity
        if surplus <= 0:
            return
        gone: list[int] = []
        pop = self._cached.popitem
        for _ in range(surplus):
            block, _none = pop(last=False)
            if isinstance(block, int):
                gone.append(block)
        self._evicted += surplus
        if gone:
            self._removed(gone)
