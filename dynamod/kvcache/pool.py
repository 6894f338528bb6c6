"""A pool of KV blocks of one device: which are in use, which are cached, which go next.

Blocks are shared: a block in use has a count of the sequences that use it. A block without users stays cached
until room is needed; the least recently freed goes first, and of one sequence the last block before those it needs.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence

from dynamod.observe.bounded import bounded

Block = Hashable
"""A full block's sequence hash, or a `PartialBlock`."""


class PartialBlock:
    """A block that is not full yet, or whose content no other sequence can have."""

    __slots__ = ()


class BlockPool:
    """`stored(parent, blocks)` is called for full blocks that are new, `removed(blocks)` for cached ones that go.

    `parent` is the block before the first one, None at the start of a prompt. With `caching` off nothing is kept for
    later, and nothing is reported.
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
        self._active: dict[Block, int] = {}  # sequences that use it
        self._cached: OrderedDict[Block, None] = OrderedDict()
        bounded(self, "KV blocks", capacity, lambda one: one.active + one.cached, "blocks")

    @property
    def active(self) -> int:
        """Blocks that sequences use."""
        return len(self._active)

    @property
    def cached(self) -> int:
        """Blocks that no sequence uses, kept for later."""
        return len(self._cached)

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

    def take(self, blocks: Sequence[Block], full: int | None = None) -> bool:
        """Use `blocks`, the first ones of a sequence or its last; False, with nothing changed, when they do not fit.

        The first `full` of them (all by default) are full, so they can be shared and are reported.
        """
        if self.needed(blocks) > self.free:
            return False
        full = len(blocks) if full is None else full
        active, cached = self._active, self._cached
        fresh: list[int] = []  # new blocks that follow each other, after `parent`
        parent = before = None
        for index, block in enumerate(blocks):
            new = block not in active and block not in cached
            cached.pop(block, None)
            active[block] = active.get(block, 0) + 1
            if index >= full or not isinstance(block, int):
                continue
            if new:
                parent = parent if fresh else before
                fresh.append(block)
            elif fresh:
                self._report(parent, fresh)
                fresh = []
            before = block
        self._evict(len(active) + len(cached) - self.capacity)
        if fresh:
            self._report(parent, fresh)
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
            self._report(parent, [block])

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

    def forget(self, blocks: Iterable[int]) -> None:
        """Cached blocks are lost. Reports nothing."""
        for block in blocks:
            del self._cached[block]

    def _report(self, parent: int | None, blocks: Sequence[int]) -> None:
        if self._caching:
            self._stored(parent, blocks)

    def shrink(self, cached: int) -> None:
        """Keep so many cached blocks at most."""
        self._evict(len(self._cached) - cached)

    def _evict(self, surplus: int) -> None:
        if surplus <= 0:
            return
        gone: list[int] = []
        pop = self._cached.popitem
        for _ in range(surplus):
            block, _none = pop(last=False)
            if isinstance(block, int):
                gone.append(block)
        if gone:
            self._removed(gone)
