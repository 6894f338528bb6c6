"""Blocks between the device and its tiers, some with each step. Pure except for the clock of `later`.

Copies are exports as those for other workers, from whichever slot has the block's cells. A waiting request whose next
blocks are in a tier is held when its turn comes, as one that another worker computes the prompt of, and its blocks are
imported as they come.
"""

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dynamod.kvcache.store import BlockLoading, BlockStore

from .handoff import HeldRequest, Shared
from .kv_cells import Sequence
from .ranges import Ranges
from .transfers import Transfer

log = logging.getLogger("dynamod.engine")

BESIDE = 0.005
"""Seconds of imports and exports in one step with running sequences, about: they wait so much longer for a token."""
ALONE = 0.05
"""The same while nothing runs: a new request would wait for it."""
PATIENCE = 1.0
"""Seconds that a request waits for its blocks, or as long as computing them would take if that is longer."""

Later = Callable[[float, Callable[[], object]], Any]
"""Calls something after some seconds; the result has `cancel`."""


@dataclass(slots=True, eq=False)
class _Load:
    sequence: Sequence
    held: HeldRequest
    loading: BlockLoading
    timer: Any


class Tiering:
    """`rate()`: tokens of prompts computed per second. `pending`: more can be done at once, with or without a step."""

    def __init__(
        self,
        tiers: BlockStore,
        shared: Shared,
        ranges: Ranges,
        later: Later,
        rate: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._tiers, self._shared, self._ranges = tiers, shared, ranges
        self._later, self._rate, self._wake = later, rate, wake
        self._queue: deque[int] = deque()  # blocks to copy
        self._copying: set[int] = set()  # blocks to copy, and blocks that are being exported
        self._loads: list[_Load] = []
        self.pending = False

    def ask(self, sequence: Sequence) -> None:
        """A request has come: blocks that were asked for often enough now, and are here, are copied."""
        names, cells = sequence.hashes.blocks, self._shared.cells
        self._tiers.ask(names)
        self.copy(name for name in reversed(names) if cells.place(name) is not None)

    def copy(self, names: Iterable[int]) -> None:
        """Copy those of these computed blocks that should be."""
        wants, copying = self._tiers.wants, self._copying
        for name in names:
            if wants(name) and name not in copying:
                copying.add(name)
                self._queue.append(name)
        if self._queue:
            self._shared.cells.copying = True  # they stay until then, unless their room is needed
            self._wake()

    def fetch(self, sequence: Sequence) -> bool:
        """Hold the oldest waiting sequence, if its next blocks are in tiers and there is room for it."""
        cells, scheduler, length = self._shared.cells, self._shared.scheduler, len(sequence.ids)
        if sequence.fetched:
            return False
        names = sequence.names((length - 1) // cells.size)
        first = cells.prefix(names, length)
        if first == len(names) or self._tiers.where(names[first]) is None or not scheduler.take(sequence):
            return False
        scheduler.waiting.popleft()
        sequence.fetched = True
        names = names[sequence.computed // cells.size :]
        names = names[: self._tiers.found(names)]
        held = HeldRequest(self._shared, sequence)
        held.refused = self._refused
        loading = self._tiers.load(names, self._wake)
        load = _Load(sequence, held, loading, None)
        patience = max(PATIENCE, len(names) * cells.size / max(1.0, self._rate()))
        load.timer = self._later(patience, functools.partial(self._expired, load))
        self._loads.append(load)
        return True

    def pump(self) -> None:
        """Before a step: give the thread blocks to import and export, for as long as others can wait."""
        left = BESIDE if self._shared.scheduler.running else ALONE
        for load in self._loads.copy():
            left = self._import(load, left)
        while self._queue and left > 0:
            left -= self._export(self._queue.popleft())
        cells = self._shared.cells
        if cells.copying and not self._queue:
            cells.copying = False
            cells.shrink()
        self.pending = left <= 0

    def _import(self, load: _Load, left: float) -> float:
        """Returns what is left of the time."""
        loading = load.loading
        while left > 0 and (block := loading.take()) is not None:
            if not load.held.put(block.name, block.data):
                self._end(load)
                return left
            left -= self._ranges.import_seconds
        if loading.over or load.sequence.gone:
            self._end(load)
        return left

    def _end(self, load: _Load) -> None:
        load.timer.cancel()
        self._loads.remove(load)
        if not load.sequence.gone:
            load.held.go()

    def _expired(self, load: _Load) -> None:
        log.info("llama.cpp: blocks of a prompt do not come from their tier, and are computed")
        load.loading.give_up()
        self._wake()

    def _export(self, name: int) -> float:
        """Returns the seconds that it will take."""
        place, size = self._shared.cells.place(name), self._shared.cells.size
        if place is None:  # it has left the device meanwhile
            self._copying.discard(name)
            self._tiers.levels[0].refused += 1
            return 0.0
        slot, index = place
        told = functools.partial(self._exported, name)
        self._shared.transfer(Transfer(slot, index * size, (index + 1) * size, name, None, told))
        return self._ranges.export_seconds

    def _exported(self, name: int, result: bytes | Exception) -> None:
        self._copying.discard(name)
        if isinstance(result, Exception):
            self._tiers.levels[0].failed += 1
            log.warning("llama.cpp: a block was not copied to its tier: %s", result)
        else:
            self._tiers.put(name, len(result), result)

    def _refused(self, name: int) -> None:
        """What came was no such block: it is not loaded again."""
        for level in self._tiers.levels:
            if name in level:
                level.failed += 1
                level.discard(name)
