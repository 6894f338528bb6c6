"""Whole states over cells that only remember: imported in their turn, and computed on only when they are there."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.llamacpp.scheduler import Row

from .remembering import Exported, Held, House


def house(blocks: int = 64, seqs: int = 4, budget: int = 16) -> House:
    made = House(blocks, seqs=seqs, budget=budget, cached=0, caching=False)
    made.exports = True  # steps may be empty
    return made


def spans(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.start, row.count) for row in rows]


def test_the_state_is_exported_behind_the_last_token_but_one() -> None:
    for length, wanted in ((2, [1]), (4, [3]), (5, [4]), (11, [10]), (16, [15]), (17, [16]), (24, [16, 7])):
        one = house()
        export = one.export(list(range(length)))
        one.run()
        assert (export.names, export.ends, one.computed()) == (export.wanted, [None], wanted)
        assert one.totals.exported == 1
        one.nothing_left()


def test_one_that_does_it_all_cuts_there_too() -> None:
    for length, wanted in ((2, [1, 1]), (11, [10, 1]), (24, [16, 7, 1])):
        one = house()
        one.add(list(range(length))).split = length - 1
        one.run()
        assert one.computed() == wanted


def test_nothing_is_computed_on_before_the_thread_has_imported() -> None:
    one = house()
    one.tells_in_steps = False
    held = one.hold(list(range(11)), answer=2)
    assert held.put()
    assert one.memory.cells == [], "it has no slot yet"
    held.request.go()
    assert spans(one.step()) == []
    assert len(one.memory.cells) == 10
    assert spans(one.step()) == []
    beside = one.add(list(range(50, 55)))
    assert spans(one.step()) == [(0, 5)]
    one.tell()
    assert spans(one.step()) == [(10, 1)]
    assert held.sequence.found == 10
    assert beside.gone
    one.run()
    assert (one.totals.imported, one.totals.refused) == (1, 0)
    one.nothing_left()


def test_a_state_that_is_refused_is_computed() -> None:
    one = house()
    held = one.hold(list(range(11)))
    assert held.put("damaged")
    held.request.go()
    one.run()
    assert one.computed() == [11]
    assert (one.totals.imported, one.totals.refused, held.sequence.found) == (0, 1, 0)
    one.nothing_left()


def test_one_that_gives_way_during_its_import_has_the_state_imported_again() -> None:
    one = house(blocks=7, seqs=2)
    one.tells_in_steps = False
    grows = one.add(list(range(12)), answer=12)
    one.step()
    held = one.hold(list(range(30, 37)))
    assert held.put()
    held.request.go()
    one.step()
    assert held.sequence.slot >= 0
    assert held.sequence.awaited
    for _ in range(11):
        one.step()
    assert held.sequence.slot < 0
    one.tell()
    assert one.totals.imported == 0, "what the thread has imported is gone"
    one.tells_in_steps = True
    one.run()
    assert (one.totals.imported, one.totals.refused, one.scheduler.preemptions) == (1, 0, 1)
    assert grows.gone
    assert [row.count for rows in one.steps for row in rows if row.sequence is held.sequence] == [1]
    one.nothing_left()


def test_what_the_thread_says_late_is_of_an_import_that_is_gone() -> None:
    one = house(blocks=7, seqs=2)
    one.tells_in_steps = False
    grows = one.add(list(range(12)), answer=12)
    one.step()
    held = one.hold(list(range(30, 37)), answer=3)
    assert held.put()
    held.request.go()
    one.step()
    while not grows.gone:
        one.step()
    one.step()
    assert held.sequence.slot >= 0
    assert len(one.memory.results) == 2, "imported twice"
    told, result = one.memory.results.popleft()
    told(result)
    assert held.sequence.awaited
    one.run()
    assert (one.totals.imported, one.scheduler.preemptions) == (1, 1)
    one.nothing_left()


def test_a_suspect_whose_state_is_on_its_way_waits_for_it() -> None:
    one = house()
    bad, good = one.add(list(range(5))), one.add(list(range(9)))
    held = one.hold(list(range(20, 27)))
    assert held.put()
    held.request.go()
    for _ in range(2):
        one.step(broken=bad)
    one.run()
    assert (bad.owner, good.owner, held.sequence.owner) == ("failed", 0, 0)
    assert held.sequence.gone
    one.nothing_left()


def test_who_leaves_during_the_import_leaves_nothing() -> None:
    one = house()
    one.tells_in_steps = False
    held = one.hold(list(range(11)))
    assert held.put()
    held.request.go()
    one.step()
    held.request.cancel()
    one.tell()
    assert one.scheduler.idle
    assert one.totals.imported == 0
    one.nothing_left()


_PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=20)
_NUMBER = st.integers(0, 100)
_EVENT = st.one_of(
    st.tuples(st.sampled_from(["hold", "hold", "add", "export"]), _PROMPT, st.integers(0, 8)),
    st.tuples(st.just("put"), st.sampled_from(["", "", "", "damaged", "name"]), st.just(0)),
    st.tuples(st.just("go"), _NUMBER, st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 20), st.booleans()),
    st.tuples(st.sampled_from(["cancel", "leave", "stop"]), _NUMBER, st.just(0)),
    st.tuples(st.sampled_from(["tell", "fail", "ahead"]), st.just(0), st.just(0)),
)


@given(st.lists(_EVENT, min_size=10, max_size=60), st.integers(7, 14), st.integers(1, 4), st.integers(4, 16))
def test_whatever_happens_everybody_has_its_own_tokens(events: list[Any], blocks: int, seqs: int, budget: int) -> None:
    one = house(blocks, seqs, budget)
    scheduler, added = one.scheduler, []
    held: list[Held] = []
    exports: list[Exported] = []
    stopped: set[int] = set()
    for what, first, second in events:
        if what == "add":
            added.append(one.add(first, answer=second))
        elif what == "hold":
            held.append(one.hold(first, answer=second))
        elif what == "export":
            if len(first) > 1:
                exports.append(one.export(first))
        elif what == "put" and held:
            held[-1].put(first)
        elif what == "go" and held:
            held[-1 - first % min(2, len(held))].request.go()
        elif what == "tell":
            one.tell()
        elif what == "stop" and exports:
            exports[first % len(exports)].export.cancel()
            stopped.add(first % len(exports))
        elif what == "leave" and added:
            scheduler.remove(added[first % len(added)])
        elif what == "cancel" and held:
            held[first % len(held)].request.cancel()
        elif not scheduler.idle:
            one.act(what, first, second)
    for another in held:
        another.request.go()
    one.run()
    one.tell()
    for sequence in [*added, *[another.sequence for another in held], *[another.sequence for another in exports]]:
        assert sequence.gone
    for number, export in enumerate(exports):
        if number not in stopped and export.sequence.owner != "failed":
            assert (export.names, export.ends) == (export.wanted, [None])
    one.nothing_left()
