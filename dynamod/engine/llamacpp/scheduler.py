"""Which tokens of which sequences the next step computes. Pure: no clock, no tasks, no llama.cpp.

Running sequences come first, one token each; then prompts, oldest first, cut to what is left of the step. When cells
run out the newest sequence gives way and is computed again later. The caller computes what `plan` returns, calls
`commit` or `failed` afterwards, and adds the next token to the `ids` of each sequence whose row was its `last`. It may
begin with what `ahead` returns before that; then it calls neither `plan` nor `failed` until that is over too.

A step computes with one adapter or with none. Where there are adapters, each has its turn of TURN steps, or of fewer
when it has nothing to compute; the next turn has the one whose last was longest ago. Sequences are admitted in their
order, with or without the turn.

Sequences whose blocks are exported are prompts like others, and end with their last block. One that has been computed,
while blocks of it wait for room where they go, is held. Other held ones wait for blocks from elsewhere, in cells of
their own once the first has come: no step has held ones, and they give way before others do.

Without a cache a prompt is exported as a whole, its state, when all of it is computed. One whose state has come is
admitted in its turn, has the state imported into its slot, and is in no step before that is over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from ..batching.scheduler import BatchScheduler
from .kv_cells import Cells, Sequence
from .scores import SCORED

TURN = 4
"""Steps of a turn: the first of them costs some milliseconds more, and sequences without the turn wait."""


@dataclass(frozen=True, slots=True)
class Row:
    """Compute `count` tokens of a sequence from position `start` on. `last`: the next token is wanted then."""

    sequence: Sequence
    start: int
    count: int
    last: bool


class Scheduler(BatchScheduler[Sequence]):
    """Waiting and running sequences over the cells of one context.

    `adapters`: whether sequences may differ in what computes them. `fetch` is asked before the oldest waiting one is
    admitted: True when it is held from then on, for blocks of a tier.
    """

    def __init__(self, cells: Cells, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        super().__init__(cells.pool)
        self.cells = cells
        self._most, self._budget = max_num_seqs, max_num_batched_tokens
        self._suspects: list[Sequence] = []  # of a step that failed: each is tried alone
        self._exports: list[Sequence] = []
        self.held: list[Sequence] = []
        self.fetch: Callable[[Sequence], bool] = lambda _sequence: False
        self._unscored = SCORED  # tokens of prompts that the step may score yet
        self.adapters = False
        self._turn, self._turn_left = "", 0  # the adapter that computes, and for how many steps
        self._turns: dict[str, int] = {}  # by adapter, the number of its last turn

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens, and those still to come, must fit the cells."""
        super().add(sequence)
        if sequence.export is not None:
            self._exports.append(sequence)

    def take(self, sequence: Sequence) -> bool:
        """Give a held sequence cells for its prompt, the cached ones too; False when there is no room now."""
        return self._held_fits() and self.cells.admit(sequence, len(self.running))

    def _held_fits(self) -> bool:
        """Whether one more held sequence may have a slot."""
        return sum([one.slot >= 0 for one in self.held]) < self.cells.slots - self._most

    def go(self, sequence: Sequence) -> None:
        """A held sequence is computed now. Without a place it waits; what has been imported stays cached then."""
        self.held.remove(sequence)
        if sequence.slot < 0 or len(self.running) >= self._most:
            if sequence.slot >= 0:
                self.free(sequence)
            if sequence.fetched:  # its turn had come
                self.waiting.appendleft(sequence)
            else:
                self.add(sequence)
            return
        self.waiting.appendleft(sequence)
        sequence.found = sequence.computed
        self.admitted(len(sequence.ids), sequence.computed if sequence.fetched else sequence.cached)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or its reader has left. Does nothing the second time."""
        sequence.gone = True
        super().remove(sequence)
        for others in (self._suspects, self._exports, self.held):
            if sequence in others:
                others.remove(sequence)
                if others is self.held and sequence.slot >= 0:
                    self.free(sequence)

    def lengths(self) -> tuple[list[int], list[int]]:
        """Tokens of each prompt that waits or is held, and of each answer that gave way to others."""
        waiting = [*self.waiting, *self.held]
        return [len(one.ids) for one in waiting if not one.answers], [len(one.ids) for one in waiting if one.answers]

    @property
    def begun(self) -> int:
        """Tokens that are still to be computed, of prompts that have begun."""
        return sum([one.missing for one in self.running if one.missing > 1 or not one.answers])

    def free(self, sequence: Sequence) -> None:
        """Its full blocks stay cached as long as there is room."""
        self.cells.release(sequence)

    @property
    def decoding(self) -> bool:
        """Whether a client waits for the next token of an answer that has begun."""
        return any(sequence.missing == 1 for sequence in self.running)

    def plan(self, chunk: int) -> list[Row]:
        """The next step. `chunk`: most tokens of prompts that it may compute.

        It has at least one row unless all that ran has been exported, or all that waited is held, or states are on
        their way: the next one has then, or nothing is left.
        """
        self._unscored = SCORED
        if self._exports:
            self._export()
        if self._suspects:
            return self._alone(chunk)
        return self._in_turn(chunk) if self.adapters else self._rows(chunk, None)

    def has(self, adapter: str) -> bool:
        """Whether a sequence is there that this adapter computes."""
        return any(one.adapter == adapter for one in (*self.running, *self.waiting, *self.held))

    def forget(self, adapter: str) -> None:
        """No sequence has this adapter any more."""
        self._turns.pop(adapter, None)

    def _in_turn(self, chunk: int) -> list[Row]:
        """A step of the adapter that has its turn, of the next one where that has nothing to compute."""
        there = {one.adapter for one in (*self.running, *islice(self.waiting, 1))}
        goes_on = self._turn in there and self._turn_left > 0
        queue = sorted(there, key=lambda one: (not (goes_on and one == self._turn), self._turns.get(one, 0), one))
        for adapter in queue:
            if rows := self._rows(chunk, adapter):
                if not goes_on or adapter != self._turn:
                    self._turn, self._turn_left = adapter, TURN
                    self._turns[adapter] = max(self._turns.values(), default=0) + 1
                self._turn_left -= 1
                return rows
        return []

    def _with(self, adapter: str | None) -> list[Sequence]:
        return self.running if adapter is None else [one for one in self.running if one.adapter == adapter]

    def _rows(self, chunk: int, adapter: str | None) -> list[Row]:
        """The step of those with an adapter; None: of all."""
        ready = [sequence for sequence in self._with(adapter) if sequence.missing == 1]
        rows = [self._row(sequence, 1) for sequence in ready if sequence.slot >= 0 and self._grow(sequence)]
        left = min(self._budget - len(rows), max(1, chunk))
        promised: set[int] = set()  # blocks that this step computes: other sequences take them afterwards
        for sequence in self._with(adapter):
            if sequence.missing > 1 and left > 0:
                left -= self._chunk(sequence, left, rows, promised)
        while self.waiting and len(self.running) < self._most and left > 0:
            if self.fetch(self.waiting[0]):
                continue
            if not self._admit(len(self.running)):
                if self.running or not self._drop():
                    break
                continue
            if adapter in (None, self.running[-1].adapter):
                left -= self._chunk(self.running[-1], left, rows, promised)
        if self._exports:
            self._export()  # what was found in the cache
        return rows

    def ahead(self, rows: list[Row], goes_on: Callable[[Sequence], bool]) -> list[Row]:
        """The step after that of `rows`, which is being computed: the token after the one that each of them gets.

        `goes_on`: whether its answer may have another one. Empty when there is more to decide than that, as when the
        turn of an adapter ends.
        """
        running = [row for row in rows if not row.sequence.gone]
        if self.waiting or self._suspects or not all(row.last for row in running):
            return []
        in_turn = len(running) < len(self.running)  # others have none now, or are not computed yet
        if in_turn and not self._turn_goes_on(running):
            return []
        found = [Row(row.sequence, row.start + row.count, 1, True) for row in running if goes_on(row.sequence)]
        if not all(self.cells.grow(row.sequence, row.start) for row in found):
            return []
        self._turn_left -= in_turn and bool(found)
        return found

    def _turn_goes_on(self, rows: list[Row]) -> bool:
        """Whether the next step is of these sequences too, because others are computed with other adapters."""
        if not self.adapters or not rows or not self._turn_left or self._exports:
            return False
        return len(rows) == len(self._with(self._turn)) and all(row.sequence.adapter == self._turn for row in rows)

    def commit(self, rows: list[Row]) -> None:
        """The step has been computed."""
        for row in rows:
            sequence = row.sequence
            if sequence.gone:
                continue
            self.cells.fill(sequence, row.start + row.count)
            if self._suspects and sequence in self._suspects:
                self._suspects.remove(sequence)

    def failed(self, rows: list[Row]) -> list[Sequence]:
        """The step could not be computed. Returns the sequence at fault, removed; none when that is not known yet.

        Those of a step of several are computed again, each in steps of its own until one has succeeded.
        """
        sequences = [row.sequence for row in rows if not row.sequence.gone]
        if len(rows) == 1:
            for sequence in sequences:
                self.remove(sequence)
            return sequences
        while self.running:
            self.preempt(self.running[-1])
        self._suspects = sequences
        return []

    def _row(self, sequence: Sequence, count: int) -> Row:
        return Row(sequence, sequence.computed, count, count == sequence.missing)

    def _chunk(self, sequence: Sequence, left: int, rows: list[Row], promised: set[int]) -> int:
        """Compute some of a prompt, unless another sequence computes the same in this step; returns how much."""
        cells, size = self.cells, self.cells.size
        if sequence.awaited:
            return 0
        extended = cells.extend(sequence)
        self.cached_tokens += extended
        sequence.found += extended
        start, missing = sequence.computed, sequence.missing
        count = min(missing, left)
        if sequence.scores is not None:
            count = min(count, self._unscored)
            self._unscored -= count
            if not count:
                return 0
        if start < sequence.split:
            count = min(count, sequence.split - start)
        elif sequence.export is not None:
            return 0  # all that is exported is there
        if sequence.singly:
            count = min(count, max(1, sequence.singly - start))
        if size < count < missing and start + count != sequence.split:
            count -= (start + count) % size  # whole blocks can be shared
        if cells.caching:
            first, end = start // size, (start + count) // size
            if start % size == 0 and missing >= size and sequence.name(first) in promised:
                return 0
            promised.update([sequence.name(index) for index in range(first, end)])
        rows.append(self._row(sequence, count))
        return count

    def _admit(self, spare: int) -> bool:
        """The oldest waiting sequence begins to run, if that leaves `spare` blocks for the others to grow."""
        sequence = self.waiting[0]
        if not self.cells.admit(sequence, spare):
            return False
        if sequence.found < 0:
            sequence.found = sequence.cached
        self.admitted(len(sequence.ids), sequence.cached)
        if sequence.state is not None:
            sequence.state.begin()
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for its next token; False when the sequence itself had to give way."""
        while not self.cells.grow(sequence, sequence.computed):
            if self._drop():
                continue
            victim = self.running[-1]  # always the last running one, so the order of the queue stays
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _drop(self) -> bool:
        """The newest held sequence with cells gives way; False when there is none."""
        for sequence in reversed(self.held):
            if sequence.slot >= 0:
                self.free(sequence)
                self.preemptions += 1
                return True
        return False

    def _export(self) -> None:
        """Have the blocks exported that are there now, each once; without a cache the state of all."""
        for sequence in self._exports.copy():
            self._export_of(sequence)

    def _export_of(self, sequence: Sequence) -> None:
        size, caching = self.cells.size, self.cells.caching
        over = sequence.computed == sequence.split
        end, count = (sequence.computed // size, sequence.split // size) if caching else (int(over), 1)
        if end > sequence.exported:
            assert sequence.export is not None
            sequence.exported = sequence.export(sequence.exported, end)
        if sequence.exported == count:
            self.remove(sequence)
        elif over and sequence in self.running:
            self.running.remove(sequence)
            if not self._held_fits():
                self.free(sequence)
            self.held.append(sequence)

    def resume(self, sequence: Sequence) -> None:
        """There is room for blocks of an export that had none. Blocks that had to give way are computed again."""
        if sequence in self.held and sequence.slot < 0:
            self.held.remove(sequence)
            self.waiting.appendleft(sequence)
        else:
            self._export_of(sequence)

    def _alone(self, chunk: int) -> list[Row]:
        """A step of the oldest suspect."""
        suspect = self._suspects[0]
        while suspect.slot < 0:
            if self.waiting[0] is not suspect:  # one that was no part of the failed step waits at the head
                self.waiting.remove(suspect)
                self.waiting.appendleft(suspect)
            if not self._admit(0) and not self._drop():
                self.preempt(self.running[-1])
        if not self._grow(suspect):
            return self.plan(chunk)
        rows: list[Row] = []
        self._chunk(suspect, min(self._budget, max(1, chunk)), rows, set())
        return rows
