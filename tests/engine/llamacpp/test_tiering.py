"""Blocks between tiers and cells that only remember: everybody has its own tokens, and steps do little of it."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.llamacpp.kv_cells import Sequence
from dynamod.engine.llamacpp.scheduler import Row
from dynamod.engine.llamacpp.tiering import ALONE, BESIDE, PATIENCE, Tiering
from dynamod.features.tiers.level import HostLevel
from dynamod.features.tiers.store import Tiers
from dynamod.message.kv_events import Removed, Stored, TierEvent, TierStored

from .remembering import SIZE, Exported, House


class Timer:
    def __init__(self, seconds: float, call: Any) -> None:
        self.seconds, self.call, self.cancelled = seconds, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Tiered(House):
    """`below`: what a router would know of the host. A block has bytes of its whole prefix here."""

    def __init__(self, blocks: int, *, most: int = 10**6, enough: int = 1, seconds: float = 1e-4, **more: Any) -> None:
        super().__init__(blocks, **more)
        self.exports = True  # a step may have no rows
        self.below: set[int] = set()
        self.timers: list[Timer] = []
        self.host = HostLevel(most, self._publish_below)
        self.woken = 0
        ranges: Any = SimpleNamespace(export_seconds=seconds, import_seconds=seconds)
        tiers = Tiers([self.host], enough)
        self.tiering = Tiering(tiers, self.shared, ranges, self._later, lambda: 100.0, self._wake)
        self.scheduler.fetch = self.tiering.fetch
        self.moved: list[int] = []
        self._plan = self.scheduler.plan
        self.scheduler.plan = self._plan_and_pump  # type: ignore[method-assign]

    def _plan_and_pump(self, chunk: int) -> list[Row]:
        rows = self._plan(chunk)
        self.pump()
        return rows

    def pump(self) -> None:
        before = len(self.memory.results)
        self.tiering.pump()
        self.moved.append(len(self.memory.results) - before)

    def _later(self, seconds: float, call: Any) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def _wake(self) -> None:
        self.woken += 1

    def _publish(self, item: Stored | Removed) -> None:
        super()._publish(item)
        if isinstance(item, Stored):
            self.tiering.copy(item.blocks)

    def _publish_below(self, event: TierEvent) -> None:
        if isinstance(event, TierStored):
            self.below |= set(event.blocks)
        else:
            self.below -= set(event.blocks)

    def add(self, ids: list[int], answer: int = 0) -> Sequence:
        sequence = Sequence(answer, ids, SIZE)
        sequence.names(len(ids) // SIZE)
        self.tiering.ask(sequence)
        self.scheduler.add(sequence)
        return sequence

    def run(self) -> None:
        for _ in range(10_000):
            super().run()
            if not self.tiering._loads and not self.tiering.pending:
                self.pump()
                if not self.memory.results:
                    return
            self.pump()
            self.tell()
        raise AssertionError("it never ends")


PROMPT = list(range(40))
OTHER = list(range(100, 140))


def test_a_prompt_that_fell_out_is_imported_and_its_end_computed() -> None:
    house = Tiered(12)
    for ids in (PROMPT, OTHER):
        house.add(ids)
        house.run()
    house.steps.clear()
    again = house.add(PROMPT)
    house.run()
    assert again.gone
    assert house.computed() == [4], "with its last token"
    assert house.totals.imported == 7, "two were still there"
    assert all(timer.cancelled for timer in house.timers)
    assert [timer.seconds for timer in house.timers] == [max(PATIENCE, house.totals.imported * SIZE / 100)]


def test_what_was_asked_for_once_is_not_kept() -> None:
    house = Tiered(12, enough=2)
    house.add(PROMPT)
    house.run()
    assert house.host.stored == 0
    house.add(PROMPT)
    house.run()
    assert house.host.stored == 10, "from the cells where they are"
    house.add(OTHER)
    house.run()
    assert house.host.stored == 10


def test_a_step_moves_no_more_than_others_can_wait_for() -> None:
    house = Tiered(64, seconds=BESIDE / 2, budget=64)
    other = house.add([1, 2, 3], answer=60)
    house.step()
    house.add(PROMPT)
    while not other.gone:
        house.step()
        house.tell()
    assert max(house.moved) == 2
    house = Tiered(64, seconds=ALONE, budget=64)
    house.add(PROMPT)
    house.run()
    assert house.host.stored == 10, "one at a time"
    assert max(house.moved) == 1


def test_a_request_that_leaves_while_its_blocks_come_gives_all_back() -> None:
    house = Tiered(12, seconds=ALONE)
    for ids in (PROMPT, OTHER):
        house.add(ids)
        house.run()
    again = house.add(PROMPT)
    house.step()
    assert not house.scheduler.running
    house.scheduler.remove(again)
    house.run()
    assert house.scheduler.held == []
    assert house.cells.pool.active == 0
    assert house.tiering._loads == []


def test_no_room_leaves_it_at_the_head_of_the_queue() -> None:
    house = Tiered(12, budget=64)
    for ids in (PROMPT, OTHER):
        house.add(ids)
        house.run()
    big = house.add(list(range(200, 230)), answer=10)
    house.step()
    again, last = house.add(PROMPT), house.add([7, 8, 9])
    house.step()
    assert list(house.scheduler.waiting) == [again, last]
    house.run()
    assert big.gone
    assert again.gone
    assert last.gone
    assert house.totals.imported > 0


def test_a_prompt_for_another_worker_is_read_from_its_tier_too() -> None:
    house = Tiered(12)
    first = house.export(list(range(41)))
    house.run()
    house.add(OTHER)
    house.run()
    house.steps.clear()
    again = house.export(list(range(41)))
    house.run()
    assert (first.names, again.names) == (first.wanted, first.wanted)
    assert (again.ends, house.computed()) == ([None], [])


_IDS = st.builds(lambda which, length: [which] * length, st.integers(0, 2), st.integers(9, 26))
"""Few prompts, so that they come again."""
_EVENT = st.one_of(
    st.tuples(st.sampled_from(["add", "add", "export"]), _IDS, st.integers(0, 6)),
    st.tuples(st.sampled_from(["run", "run", "ahead", "tell", "expire", "fail"]), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 20), st.booleans()),
    st.tuples(st.sampled_from(["leave", "damage", "lose"]), st.integers(0, 100), st.just(0)),
)


@given(
    st.lists(_EVENT, min_size=30, max_size=100),
    *(st.integers(8, 12), st.integers(1, 4), st.integers(4, 16), st.integers(1, 3), st.integers(200, 3000)),
    *(st.integers(1, 2), st.sampled_from([1e-4, BESIDE / 2, ALONE]), st.integers(0, 12)),
)
def test_whatever_happens_everybody_has_its_own_tokens(
    events: list[Any],
    blocks: int,
    seqs: int,
    budget: int,
    cached: int,
    most: int,
    enough: int,
    seconds: float,
    idle: int,
) -> None:
    more: dict[str, Any] = {"seqs": seqs, "budget": budget, "cached": cached, "idle": idle}
    house = Tiered(blocks, most=most, enough=enough, seconds=seconds, **more)
    scheduler, added = house.scheduler, []
    exports: list[Exported] = []
    for what, first, second in events:
        if what == "add":
            added.append(house.add(first, answer=second))
        elif what == "export":
            exports.append(house.export(first))
        elif what == "tell":
            house.tell()
        elif what == "run":
            house.run()
        elif what == "expire":
            for timer in house.timers:
                if not timer.cancelled:
                    timer.call()
        elif what == "leave" and added:
            scheduler.remove(added[first % len(added)])
        elif what in ("damage", "lose") and house.host.names():
            name = house.host.names()[first % len(house.host.names())]
            if what == "damage":
                house.host._data[name] = b""
            else:
                house.host.discard(name)
        elif scheduler.idle:
            house.pump()
        else:
            house.act(what, first, second)
        house.check()
        assert house.below == set(house.host.names())
        assert house.host.used <= most
    house.run()
    assert all(sequence.gone for sequence in added)
    for export in exports:
        if export.sequence.owner != "failed":
            assert (export.names, export.ends) == (export.wanted, [None])
    assert house.tiering._loads == []
    assert house.tiering._copying == set()
    assert not house.cells.copying
    house.nothing_left()
