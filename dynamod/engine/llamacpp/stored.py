"""Blocks for other workers that are here already, in the device or its tiers: some with each step. Pure.

Nothing is computed for them, and nothing is held: blocks that leave meanwhile are not given, nor are those after them.
"""

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence

from dynamod.kvcache.store import BlockLoading, BlockStore

from ..batching.handoff import AskRoom, Done, Put, Room, unlimited
from .handoff import Shared
from .ranges import Ranges
from .tiering import ALONE, BESIDE
from .transfers import Transfer

log = logging.getLogger("dynamod.engine")


class StoredExports:
    """All of an engine. `wake`: there is something for the next step. `pending`: more can be done at once."""

    def __init__(self, shared: Shared, ranges: Ranges, tiers: BlockStore | None, wake: Callable[[], None]) -> None:
        self.shared, self.ranges, self.tiers, self.wake = shared, ranges, tiers, wake
        self.open: deque[_StoredExport] = deque()
        self.pending = False

    def begin(self, names: Sequence[int], put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Put those of these blocks that are here, up to the first that is not; returns what cancels it."""
        export = _StoredExport(self, names, put, done, Room(room, self.ranges.export_bytes, self.wake))
        self.open.append(export)
        self.wake()
        return export.cancel

    def pump(self) -> None:
        """Before a step: give the thread blocks to export, for as long as others can wait."""
        left = BESIDE if self.shared.scheduler.running else ALONE
        self.open.rotate(-1)  # each reader's turn comes: none waits until another has all
        for export in tuple(self.open):
            left = export.give(left)
        self.pending = left <= 0 and bool(self.open)


class _StoredExport:
    """The blocks of one prompt, in order."""

    def __init__(self, owner: StoredExports, names: Sequence[int], put: Put, done: Done, room: Room) -> None:
        self._owner, self._names, self._put, self._done, self._room = owner, names, put, done, room
        self._next = self._exporting = 0  # the block to give next, and how many are in the thread
        self._loading: BlockLoading | None = None
        self._tried = -1  # the block for which tiers were asked last
        self._over = False

    def cancel(self) -> None:
        """Its reader has left. Does nothing when it has ended."""
        if not self._over:
            self._over = True
            self._owner.open.remove(self)

    def give(self, left: float) -> float:
        """Some blocks, for about so many seconds of the thread; returns what is left of these."""
        ranges, cells = self._owner.ranges, self._owner.shared.cells
        while left > 0 and not self._over:
            if self._loading is not None and self._loading.over:
                self._loading = None
            elif self._loading is not None:
                if not self._room.there() or (block := self._loading.take()) is None:
                    return left
                self._room.take()
                self._next += 1
                self._given(block.name, block.data)
                left -= ranges.import_seconds  # about as long as the copy takes
            elif (place := self._place()) is not None:
                if not self._room.take():
                    return left
                name, size, (slot, index) = self._names[self._next], cells.size, place
                told = functools.partial(self._exported, name)
                self._next += 1
                self._exporting += 1
                self._owner.shared.transfer(Transfer(slot, index * size, (index + 1) * size, name, None, told))
                left -= ranges.export_seconds
            elif self._exporting:
                return left  # what comes next must be put after these
            elif not self._load():
                self._end()
        return left

    def _place(self) -> tuple[int, int] | None:
        if self._next == len(self._names):
            return None
        return self._owner.shared.cells.place(self._names[self._next])

    def _load(self) -> bool:
        """Whether the next blocks come from tiers, where they were not asked for in vain."""
        tiers, names = self._owner.tiers, self._names[self._next :]
        count = tiers.found(names) if tiers is not None and self._tried < self._next else 0
        self._tried = self._next
        if tiers is not None and count:
            self._loading = tiers.load(names[:count], self._owner.wake)
        return bool(count)

    def _exported(self, name: int, result: bytes | Exception) -> None:
        self._exporting -= 1
        if self._over:
            return
        if isinstance(result, Exception):
            log.warning("llama.cpp: a block was not exported for another worker: %s", result)
            self._end()
            return
        self._given(name, result)
        self._owner.wake()

    def _given(self, name: int, data: bytes) -> None:
        self._owner.shared.totals.exported += 1
        self._put(name, data)

    def _end(self) -> None:
        self.cancel()
        self._done(None)
