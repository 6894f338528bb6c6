"""Prompts that are exported, and prompts that are imported. Pure: the thread does what `operate` is given.

Nothing is found by the prefix cache, nor computed on, before the thread has said that its import succeeded.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Generate

from ..batching.handoff import AskRoom, Done, Put, Room, unlimited
from .kv_cells import REMOVE, Cells, Operation, Sequence
from .scheduler import Scheduler
from .transfers import Transfer

log = logging.getLogger("dynamod.engine")


@dataclass(slots=True)
class Totals:
    """Blocks so far. `refused`: blocks that could not be imported, and were computed."""

    exported: int = 0
    imported: int = 0
    refused: int = 0


class Shared(NamedTuple):
    """What exports and imports of one engine share. `transfer` and `operate` happen in the order of the calls.

    `export_bytes`: of an exported block, or of a state at least.
    """

    scheduler: Scheduler
    cells: Cells
    transfer: Callable[[Transfer], None]
    operate: Callable[[Operation], None]
    wake: Callable[[], None]
    totals: Totals
    export_bytes: int = 0


class Export:
    """Computes and exports all blocks of a sequence that has a `split`: after its last block, which is not its end.

    `room`: for each block. One without stays in the KV cache, and so do those after it.
    """

    def __init__(
        self,
        shared: Shared,
        request: Generate,
        sequence: Sequence,
        put: Put,
        done: Done,
        room: AskRoom = unlimited,
    ) -> None:
        self.request = request
        self._room = Room(room, shared.export_bytes, self._resume)
        self._shared, self._sequence, self._put, self._done = shared, sequence, put, done
        self._left = self._count()
        self._over = False
        sequence.owner, sequence.export = self, self._parts
        shared.scheduler.add(sequence)
        shared.wake()

    def cancel(self) -> None:
        """Its reader has left. Does nothing when it has ended."""
        self._over = True
        self._shared.scheduler.remove(self._sequence)

    def failed(self, error: Exception) -> None:
        """Its blocks cannot be computed, or not be exported."""
        if not self._over:
            self.cancel()
            self._done(error)

    def _count(self) -> int:
        """Of all that is exported."""
        return self._sequence.split // self._shared.cells.size

    def _part(self, index: int) -> tuple[int, int, int]:
        """Positions, from and to, and the name."""
        size = self._shared.cells.size
        return index * size, (index + 1) * size, self._sequence.name(index)

    def _resume(self) -> None:
        if not (self._over or self._sequence.gone):
            self._shared.scheduler.resume(self._sequence)
            self._shared.wake()

    def _parts(self, first: int, end: int) -> int:
        for index in range(first, end):
            if not self._room.take():
                return index
            start, stop, name = self._part(index)
            told = functools.partial(self._exported, name)
            self._shared.transfer(Transfer(self._sequence.slot, start, stop, name, None, told))
        return end

    def _exported(self, name: int, result: bytes | Exception) -> None:
        if self._over:
            return
        if isinstance(result, Exception):
            request = self.request.request_id
            log.error("llama.cpp: a block of request %s was not exported: %s", request, result)
            self.failed(EngineFailed(f"the blocks of request {request} cannot be read; the worker's log says why"))
            return
        self._shared.totals.exported += 1
        self._left -= 1
        self._put(name, result)
        if not self._left and not self._over:
            self._over = True
            self._done(None)


class HeldRequest:
    """A sequence of which nothing is computed before `go`. `refused` gets the name of a block that was not imported."""

    def __init__(self, shared: Shared, sequence: Sequence) -> None:
        self._shared, self._sequence = shared, sequence
        self._importing = 0  # blocks, in the thread
        self._taken = sequence.slot >= 0
        self._going = self._failed = False
        self.refused: Callable[[int], object] = lambda _name: None
        self._open = True  # for more blocks
        shared.scheduler.held.append(sequence)

    @property
    def span(self) -> int:
        """Tokens of a block."""
        return self._shared.cells.size

    @property
    def first(self) -> int:
        """Blocks at the start of the prompt that are here already, or have been put."""
        sequence, cells = self._sequence, self._shared.cells
        if sequence.slot >= 0:
            return sequence.computed // cells.size + self._importing
        length = len(sequence.ids)
        return cells.prefix(sequence.names((length - 1) // cells.size), length)

    def put(self, name: int, data: bytes) -> bool:
        """Import block `first`, whose sequence hash must be `name`. False: it cannot be taken, continue without more.

        A block that has come here on its own meanwhile is passed over.
        """
        shared, sequence, size = self._shared, self._sequence, self._shared.cells.size
        if self._going or sequence.gone or not self._open:
            return False
        names = sequence.names((len(sequence.ids) - 1) // size)
        first = self.first
        if first == len(names) or name != names[first]:
            if name in names[:first]:
                return True
        elif self._room() and self.first == first:  # taking room may have dropped cached ones
            self._importing += 1
            start = first * size
            shared.transfer(Transfer(sequence.slot, start, start + size, name, data, self._imported))
            return True
        self._open = False
        return False

    def go(self) -> None:
        """No more blocks come: compute what is missing. Called again, it does nothing."""
        if not self._going:
            self._going = True
            self._proceed()

    def cancel(self) -> None:
        """Its reader has left. Does nothing when it has ended."""
        self._shared.scheduler.remove(self._sequence)

    def _room(self) -> bool:
        """Whether it has cells; taken once, so that one that had to give way is not in the others' way again."""
        if not self._taken:
            self._taken = self._shared.scheduler.take(self._sequence)
        return self._taken and self._sequence.slot >= 0

    def _imported(self, result: bytes | Exception) -> None:
        """The thread has done the oldest import. Those after one that failed are removed with it."""
        shared, sequence = self._shared, self._sequence
        self._importing -= 1
        if sequence.slot < 0:  # it had to give way, or its reader has left
            self._open = False
        elif self._failed:
            pass
        elif isinstance(result, Exception):
            log.warning("llama.cpp: a block was not imported, and is computed: %s", result)
            shared.totals.refused += 1
            self._failed, self._open = True, False
            self.refused(sequence.name(sequence.computed // shared.cells.size))
            shared.operate((REMOVE, sequence.slot, sequence.computed, -1))
        else:
            shared.totals.imported += 1
            shared.cells.fill(sequence, sequence.computed + shared.cells.size)
        self._proceed()

    def _proceed(self) -> None:
        if self._going and not self._importing and not self._sequence.gone:
            self._shared.scheduler.go(self._sequence)
            self._shared.wake()
