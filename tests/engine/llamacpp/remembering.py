"""The scheduler's surroundings in its tests: cells that remember what was computed in them, and who knows of blocks."""

from collections import deque
from collections.abc import Callable
from typing import Any

from dynamod.engine.batching.handoff import AskRoom
from dynamod.engine.llamacpp.handoff import Export, HeldRequest, Shared, Totals
from dynamod.engine.llamacpp.kv_cells import Cells, Operation, Sequence
from dynamod.engine.llamacpp.scheduler import Row, Scheduler
from dynamod.engine.llamacpp.state_handoff import HeldState, StateExport
from dynamod.engine.llamacpp.transfers import Transfer
from dynamod.kvcache.hashes import PrefixHashes, block_hashes
from dynamod.message import tokens
from dynamod.message.kv_events import Removed, Stored
from dynamod.message.worker import Generate

SIZE = 4


class Cell:
    """One KV cell: its place, the tokens up to there that it was computed behind, and the slots that hold it.

    `adapter`: what has computed it.
    """

    def __init__(self, place: int, content: tuple[int, ...], slot: int, adapter: str = "") -> None:
        self.place, self.content, self.slots, self.adapter = place, content, {slot}, adapter


class Remembering:
    """llama.cpp's memory, with the content of every cell."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.results: deque[tuple[Any, bytes | Exception]] = deque()  # that the loop has not been told
        self.cells: list[Cell] = []

    def operate(self, operation: Operation | Transfer) -> None:
        if isinstance(operation, Transfer):
            self.results.append((operation.told, self.transfer(operation)))
            return
        source, target, start, end = operation
        if source < 0:
            self.remove(target, start, end)
        else:
            self.copy(source, target, start, end)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        assert source != target
        found = [cell for cell in self.cells if source in cell.slots and start <= cell.place < end]
        assert sorted(cell.place for cell in found) == list(range(start, end)), "copies what is not there"
        for cell in found:
            cell.slots.add(target)

    def remove(self, slot: int, start: int, end: int) -> None:
        for cell in self.cells:
            if start <= cell.place and (end < 0 or cell.place < end):
                cell.slots.discard(slot)
        self.cells = [cell for cell in self.cells if cell.slots]

    def transfer(self, transfer: Transfer) -> bytes | Exception:
        """A block's bytes are the tokens up to its end; damaged ones are none."""
        places = list(range(transfer.start, transfer.end))
        mine = sorted((cell.place, cell.content) for cell in self.cells if transfer.slot in cell.slots)
        if transfer.data is None:
            found = [content for place, content in mine if place in places]
            assert [len(content) - 1 for content in found] == places, "exports what is not there"
            return tokens.pack(found[-1])
        if not transfer.data:
            return ValueError("damaged")
        assert not any(place in places for place, _ in mine), "imports what is there"
        ids = tuple(tokens.unpack(transfer.data))
        self.cells += [Cell(place, ids[: place + 1], transfer.slot) for place in places]
        assert len(self.cells) <= self.capacity, "more cells than there are"
        return b""

    def compute(self, sequence: Sequence, row: Row) -> None:
        self.compute_in(sequence.slot, tuple(sequence.ids), row)

    def compute_in(self, slot: int, ids: tuple[int, ...], row: Row) -> None:
        adapter = row.sequence.adapter
        mine = sorted((cell.place, cell.content, cell.adapter) for cell in self.cells if slot in cell.slots)
        assert mine == [(place, ids[: place + 1], adapter) for place in range(row.start)], "another's tokens before it"
        for place in range(row.start, row.start + row.count):
            self.cells.append(Cell(place, ids[: place + 1], slot, adapter))
        assert len(self.cells) <= self.capacity, "more cells than there are"


def next_id(sequence: Sequence) -> int:
    return sum(sequence.ids) % 7


class House:
    """Scheduler, cells and memory; `told` is what a router would know."""

    def __init__(
        self,
        blocks: int,
        *,
        seqs: int = 4,
        budget: int = 16,
        cached: int = 3,
        caching: bool = True,
        idle: int | None = None,
        room: int | None = None,
    ) -> None:
        self.room = room  # blocks that may still be exported; None: all
        self.waiting_for_room: list[Callable[[], object]] = []
        self.memory = Remembering(blocks * SIZE)
        self.told: set[int] = set()
        self.exports = False
        self.later: list[Operation | Transfer] | None = None  # what happens to cells behind a step that has been begun
        self.cells = Cells(
            self._operate,
            blocks=blocks,
            size=SIZE,
            slots=seqs + cached,
            caching=caching,
            idle=idle,
            publish=self._publish,
        )
        self.scheduler = Scheduler(self.cells, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.steps: list[list[Row]] = []
        self.totals = Totals()
        self.shared = Shared(self.scheduler, self.cells, self._operate, self._operate, lambda: None, self.totals)
        self.tells_in_steps = True

    def _operate(self, operation: Operation | Transfer) -> None:
        if self.later is None:
            self.memory.operate(operation)
        else:
            self.later.append(operation)

    def _publish(self, item: Stored | Removed) -> None:
        if isinstance(item, Removed):
            assert self.told >= set(item.blocks)
            self.told -= set(item.blocks)
        else:
            assert self.told.isdisjoint(item.blocks)
            self.told |= set(item.blocks)

    def add(self, ids: list[int], answer: int = 0, adapter: str = "") -> Sequence:
        sequence = Sequence(answer, ids, SIZE, PrefixHashes(SIZE, b"", adapter))
        self.scheduler.add(sequence)
        return sequence

    def hold(self, ids: list[int], answer: int = 0) -> "Held":
        sequence = Sequence(answer, ids, SIZE)
        kind = HeldRequest if self.cells.caching else HeldState
        return Held(kind(self.shared, sequence), sequence)

    def export(self, ids: list[int]) -> "Exported":
        split = (len(ids) - 1) // SIZE * SIZE if self.cells.caching else len(ids) - 1
        sequence = Sequence(None, ids[: split + 1], SIZE, split=split)
        self.exports = True
        return Exported(self.shared, sequence, self._room)

    def _room(self, _size: int, then: Callable[[], object]) -> bool:
        if self.room == 0:
            self.waiting_for_room.append(then)
            return False
        self.room = None if self.room is None else self.room - 1
        return True

    def make_room(self) -> None:
        """For one block of each export that waits."""
        waiting, self.waiting_for_room = self.waiting_for_room, []
        for then in waiting:
            then()

    def tell(self) -> None:
        """What the thread says of imports and exports reaches the loop."""
        while self.memory.results:
            told, result = self.memory.results.popleft()
            told(result)

    def step(self, chunk: int = 1000, broken: Any = None) -> list[Row]:
        """One step. Sequences end after `owner` tokens of answer; the next one is a function of those before."""
        rows = self.scheduler.plan(chunk)
        assert rows or self.exports, "a step without work"
        self.steps.append(rows)
        assert len({id(row.sequence) for row in rows}) == len(rows)
        assert len({row.sequence.adapter for row in rows}) < 2, "a step computes with one adapter"
        if broken is not None and any(row.sequence is broken for row in rows):
            for row in rows:
                self.memory.compute(row.sequence, row)
            for sequence in self.scheduler.failed(rows):
                sequence.owner = "failed"
            return rows
        for row in rows:
            self.memory.compute(row.sequence, row)
        if self.tells_in_steps:
            self.tell()
        self.scheduler.commit(rows)
        for row in rows:
            if row.last and not row.sequence.gone:
                self.answer(row.sequence)
        self.check()
        return rows

    def step_ahead(self, leaver: Sequence | None = None) -> None:
        """A step, and those behind it, each begun before the answers of the one before; `leaver` leaves meanwhile."""
        rows = self.scheduler.plan(1000)
        for row in rows:
            self.memory.compute(row.sequence, row)
        while rows:
            ahead = self.scheduler.ahead(rows, lambda sequence: sequence.owner > 0)
            begun = [(row.sequence.slot, (*row.sequence.ids, next_id(row.sequence)), row) for row in ahead]
            self.later = []
            self.scheduler.commit(rows)
            for row in rows:
                if row.last and not row.sequence.gone:
                    self.answer(row.sequence)
            if leaver is not None:
                self.scheduler.remove(leaver)
            for slot, ids, row in begun:
                self.memory.compute_in(slot, ids, row)
            operations, self.later = self.later, None
            for operation in operations:
                self.memory.operate(operation)
            rows = ahead
        self.check()

    def act(self, what: str, first: int, second: bool) -> None:
        """What tests draw: a `step` of at most `first` tokens, `ahead`, or a step that fails; else nothing."""
        if what == "step":
            self.tells_in_steps = second
            self.step(chunk=first)
        elif what == "ahead":
            self.step_ahead()
        elif what == "fail":
            self.step(broken=next((row.sequence for row in self.scheduler.plan(1000)), None))

    def nothing_left(self) -> None:
        """All is over: nobody holds a block, and no cell is in use that nobody can find."""
        assert self.scheduler.held == []
        assert self.cells.pool.active == 0
        assert len(self.memory.cells) == len(self.told) * SIZE, "cells that nobody can find"

    def answer(self, sequence: Sequence) -> None:
        if sequence.owner == 0:
            self.scheduler.remove(sequence)
            return
        sequence.owner -= 1
        sequence.ids.append(next_id(sequence))

    def check(self) -> None:
        """What is told is there: each block's tokens lie in cells of the slot that owns it."""
        pool = self.cells.pool
        assert set(pool.names()) == self.told
        assert pool.active + pool.cached <= pool.capacity
        for name in self.told:
            slot, index = self.cells._owner[name]
            places = range(index * SIZE, (index + 1) * SIZE)
            cells = [cell for cell in self.memory.cells if slot in cell.slots]
            found, salts = {cell.place: cell.content for cell in cells}, {cell.adapter for cell in cells}
            assert [name] == [block_hashes(tokens.pack(found[places[-1]]), SIZE, salt)[index] for salt in salts]
            assert all(found[place] == found[places[-1]][: place + 1] for place in places)

    def computed(self) -> list[int]:
        """Tokens of all rows so far."""
        return [row.count for rows in self.steps for row in rows]

    def run(self) -> None:
        for _ in range(10_000):
            self.tell()
            if not self.scheduler.idle:
                self.step()
            elif self.waiting_for_room:
                self.make_room()
            else:
                return
        raise AssertionError("it never ends")


class Held:
    """A request that blocks come for, or its state."""

    def __init__(self, request: HeldRequest | HeldState, sequence: Sequence) -> None:
        self.request, self.sequence = request, sequence
        self.ids = list(sequence.ids)

    def put(self, fault: str = "") -> bool:
        """The next block. `fault`: damaged bytes, or another block's name."""
        size = self.request.span
        end = (self.request.first + 1) * size
        ids = self.ids[:end] if end < len(self.ids) else []
        name = block_hashes(tokens.pack(ids), size)[-1] if ids else 1
        data = b"" if fault == "damaged" else tokens.pack(ids)
        return self.request.put(name ^ 1 if fault == "name" else name, data)


class Exported:
    """What has been put: all blocks of the prompt, each once and in order."""

    def __init__(self, shared: Shared, sequence: Sequence, room: AskRoom) -> None:
        self.sequence = sequence
        self.size = SIZE if shared.cells.caching else sequence.split
        self.wanted = block_hashes(tokens.pack(sequence.ids[: sequence.split]), self.size)
        self.names: list[int] = []
        self.ends: list[Exception | None] = []
        request = Generate("r", "m", b"")
        kind = Export if shared.cells.caching else StateExport
        self.export = kind(shared, request, sequence, self._put, self.ends.append, room)

    def _put(self, name: int, data: bytes) -> None:
        assert not self.ends
        self.names.append(name)
        count = len(self.names)
        assert self.names == self.wanted[:count]
        assert data == tokens.pack(self.sequence.ids[: count * self.size])
