"""Held and exported sequences over cells that only remember: nobody is stopped, nothing is served that did not come."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.llamacpp.scheduler import Row

from .remembering import SIZE, Exported, Held, House


def counts(rows: list[Row]) -> list[int]:
    return [row.count for row in rows]


def test_the_tail_behind_the_last_full_block_is_a_step_of_its_own() -> None:
    for length, wanted in ((11, [8, 3]), (9, [8, 1]), (8, [4, 4]), (4, [4]), (1, [1])):
        house = House(64)
        sequence = house.add(list(range(length)))
        sequence.split = (length - 1) // SIZE * SIZE
        house.run()
        assert house.computed() == wanted


def test_the_tokens_of_an_answer_that_goes_on_are_steps_of_their_own() -> None:
    for length, prompt, wanted in ((11, 9, [8, 1, 1, 1]), (13, 11, [8, 3, 1, 1]), (9, 8, [4, 4, 1]), (5, 5, [4, 1])):
        house = House(64)
        sequence = house.add(list(range(length)))
        sequence.split, sequence.singly = (prompt - 1) // SIZE * SIZE, prompt
        house.run()
        assert house.computed() == wanted


def test_an_export_is_computed_as_a_prompt_and_ends_with_its_last_block() -> None:
    house = House(64, budget=8)
    export = house.export(list(range(21)))
    assert counts(house.step()) == [8]
    house.run()
    assert (export.names, export.ends) == (export.wanted, [None])
    assert len(export.names) == 5
    assert house.totals.exported == 5
    assert export.sequence.gone
    assert house.told == set(export.wanted)
    house.steps.clear()
    again = house.export(list(range(21)))
    house.run()
    assert (again.names, house.computed()) == (export.wanted, [])


def test_cached_blocks_are_exported_before_the_step_that_computes_the_others() -> None:
    house = House(64)
    house.add(list(range(13)))
    house.run()
    export = house.export(list(range(21)))
    [row] = house.scheduler.plan(1000)
    house.tell()
    assert (row.start, row.count, len(export.names)) == (12, 8, 3)


def test_equal_exports_and_prompts_are_computed_once() -> None:
    house = House(64, budget=8)
    exports = [house.export(list(range(21))) for _ in range(2)]
    house.add(list(range(22)), answer=2)
    house.run()
    assert all(export.names == export.wanted for export in exports)
    assert sum(house.computed()) == 20 + 2 + 2


def test_an_export_that_gives_way_puts_the_rest_later() -> None:
    house = House(10, budget=8)
    old = house.add([1, 2, 3, 4, 5], answer=25)
    house.step()
    export = house.export(list(range(20, 41)))
    house.step()
    house.step()
    house.tell()
    assert 0 < len(export.names) < 5
    house.scheduler.preempt(export.sequence)
    house.run()
    assert old.gone
    assert (export.names, export.ends) == (export.wanted, [None])


def test_an_export_without_room_waits_computed_and_in_its_cells() -> None:
    house = House(64, budget=8, room=2)
    export, other = house.export(list(range(21))), house.add([7, 8, 9], answer=30)
    while not other.gone:
        house.step()
    house.tell()
    assert (len(export.names), house.scheduler.running, house.scheduler.held) == (2, [], [export.sequence])
    assert house.scheduler.lengths() == ([21], [])
    assert (sum(house.computed()), house.scheduler.idle) == (20 + 3 + 30, True)
    house.make_room()
    house.tell()
    assert (len(export.names), len(house.waiting_for_room)) == (3, 1)
    house.run()
    assert (export.names, export.ends) == (export.wanted, [None])
    assert sum(house.computed()) == 20 + 3 + 30, "nothing was computed again"
    house.nothing_left()


def test_an_export_without_room_gives_way_and_is_computed_again() -> None:
    house = House(8, budget=8, room=1)
    export = house.export(list(range(21)))
    while not house.scheduler.idle:
        house.step()
    other = house.add(list(range(100, 110)), answer=20)
    while not other.gone:
        house.step()
    assert (export.sequence.slot, len(export.names), house.scheduler.preemptions) == (-1, 1, 1)
    house.run()
    assert (export.names, export.ends) == (export.wanted, [None])
    assert sum(house.computed()) > 20 + 10 + 20
    house.nothing_left()


def test_an_export_that_is_cancelled_while_it_has_no_room() -> None:
    house = House(64, room=0)
    export = house.export(list(range(21)))
    while not house.scheduler.idle:
        house.step()
    export.export.cancel()
    house.make_room()
    house.tell()
    assert (export.names, export.ends) == ([], [])
    house.nothing_left()


@pytest.mark.parametrize("fault", [True, False])
def test_a_step_that_fails_ends_only_the_export_at_fault(fault: bool) -> None:
    house = House(64)
    export, other = house.export(list(range(21))), house.add([7, 8, 9], answer=3)
    while not house.scheduler.idle:
        house.step(broken=export.sequence if fault else other)
    house.tell()
    assert export.ends == ([] if fault else [None]), "the engine says why"
    assert (export.sequence.owner == "failed") == fault
    assert (other.owner == "failed") != fault


def test_nothing_is_computed_on_before_the_thread_has_imported() -> None:
    house = House(64)
    house.tells_in_steps = False
    held = house.hold(list(range(22)), answer=1)
    assert house.scheduler.idle
    assert [held.put() for _ in range(5)] == [True] * 5
    assert held.request.first == 5
    assert house.told == set(), "it is not certain yet"
    held.request.go()
    assert house.scheduler.idle, "it waits for that"
    assert not held.put()
    house.tell()
    assert len(house.told) == 5
    house.run()
    assert house.computed() == [2, 1]
    assert (house.totals.imported, house.totals.refused) == (5, 0)


def test_what_comes_behind_a_damaged_block_is_removed() -> None:
    house = House(64)
    held = house.hold(list(range(22)))
    assert [held.put(fault) for fault in ("", "", "damaged", "", "")] == [True] * 5
    house.tell()
    assert (held.request.first, held.put()) == (2, False)
    assert len(house.memory.cells) == len(house.told) * SIZE == 8
    held.request.go()
    house.run()
    assert house.computed() == [14]
    assert (house.totals.imported, house.totals.refused) == (2, 1)


def test_a_wrong_name_ends_the_import_and_keeps_what_is_on_its_way() -> None:
    house = House(64)
    held = house.hold(list(range(22)))
    assert [held.put(fault) for fault in ("", "", "name", "")] == [True, True, False, False]
    held.request.go()
    house.run()
    assert house.computed() == [14]


def test_what_was_computed_here_meanwhile_is_one_copy() -> None:
    house = House(64, budget=64)
    held = house.hold(list(range(22)))
    assert held.put()
    house.tells_in_steps = False
    other = house.add(list(range(30)))
    house.step()
    assert other.gone
    house.tell()
    assert held.put(), "the second, which is here too"
    held.request.go()
    house.run()
    assert house.computed() == [30, 2]
    house.check()
    assert len(house.memory.cells) == len(house.told) * SIZE


def test_held_ones_give_way_first_and_do_not_stop_who_waits() -> None:
    house = House(8, budget=64)
    held = house.hold(list(range(20)))
    assert held.put()
    house.tell()
    waits = house.add([9] * 25, answer=2)
    house.step()
    assert waits.slot >= 0
    assert held.sequence.slot == -1
    assert not held.put()
    held.request.go()
    house.run()
    assert held.sequence.gone
    house = House(8, budget=64)
    grows = house.add([1, 2, 3], answer=20)
    house.step()
    held = house.hold(list(range(20)))
    assert held.put()
    house.tell()
    while not grows.gone:
        house.step()
    assert (house.scheduler.preemptions, held.request.first) == (1, 1), "what came is found again"
    held.request.go()
    house.run()


def test_who_held_too_long_while_all_seats_were_taken_waits_with_its_blocks_cached() -> None:
    house = House(64, seqs=1)
    held = house.hold(list(range(20)))
    assert held.put()
    house.tell()
    runs = house.add([1, 2, 3], answer=4)
    house.step()
    held.request.go()
    assert list(house.scheduler.waiting) == [held.sequence]
    house.run()
    assert runs.gone
    assert house.computed() == [3, 1, 1, 1, 1, 16], "all but the block that came"


def test_no_more_are_taken_than_there_are_sequences_for() -> None:
    house = House(64, seqs=2, cached=1)
    first, second = house.hold(list(range(20))), house.hold(list(range(50, 70)))
    assert first.put()
    assert not second.put()
    second.request.cancel()
    first.request.cancel()
    house.tell()
    assert house.scheduler.held == []
    assert house.cells.pool.active == 0
    assert len(house.memory.cells) == len(house.told) * SIZE


def test_a_suspect_is_tried_alone_beside_held_ones() -> None:
    house = House(8, budget=64)
    suspect, other = house.add([1, 2, 3], answer=15), house.add([4, 5, 6], answer=2)
    house.step(broken=suspect)
    held = house.hold(list(range(20, 50)))
    assert held.put()
    house.tell()
    house.run()
    assert suspect.gone
    assert other.gone
    assert held.sequence.slot == -1


def test_taking_room_may_cost_the_cached_blocks_before_it() -> None:
    house = House(64, seqs=1, cached=1)
    prompt = list(range(20))
    house.add(prompt[:9])
    house.run()
    house.add([50] * 9)
    house.run()
    held = house.hold(prompt)
    assert held.request.first == 2
    assert not held.put(), "the only sequence that was left kept those two"
    held.request.go()
    house.run()
    assert house.computed()[-1] + house.computed()[-2] == 20


_PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=24)
_NUMBER = st.integers(0, 100)
_EVENT = st.one_of(
    st.tuples(st.sampled_from(["add", "hold", "export"]), _PROMPT, st.integers(0, 8)),
    st.tuples(st.just("step"), st.integers(1, 20), st.booleans()),
    st.tuples(st.just("put"), _NUMBER, st.sampled_from(["", "", "", "damaged", "name"])),
    st.tuples(st.sampled_from(["go", "cancel", "leave", "stop"]), _NUMBER, st.just(0)),
    st.tuples(st.sampled_from(["tell", "fail", "ahead", "room"]), st.just(0), st.just(0)),
)


@given(
    st.lists(_EVENT, max_size=60),
    st.integers(8, 20),
    st.integers(1, 4),
    st.integers(4, 16),
    st.integers(1, 3),
    st.sampled_from([None, 0, 4]),
    st.sampled_from([None, 0, 2]),
)
def test_whatever_happens_everybody_has_its_own_tokens(
    events: list[Any], blocks: int, seqs: int, budget: int, cached: int, idle: int | None, room: int | None
) -> None:
    house = House(blocks, seqs=seqs, budget=budget, cached=cached, idle=idle, room=room)
    house.exports = True
    scheduler, added = house.scheduler, []
    held: list[Held] = []
    exports: list[Exported] = []
    stopped: set[int] = set()
    for what, first, second in events:
        if what == "add":
            added.append(house.add(first, answer=second))
        elif what == "hold":
            held.append(house.hold(first, answer=second))
        elif what == "export":
            if len(first) > SIZE:
                exports.append(house.export(first))
        elif what == "tell":
            house.tell()
        elif what == "room":
            house.make_room()
        elif what == "stop" and exports:
            exports[first % len(exports)].export.cancel()
            stopped.add(first % len(exports))
        elif what == "leave" and added:
            scheduler.remove(added[first % len(added)])
        elif what in ("put", "go", "cancel") and held:
            one = held[first % len(held)]
            if what == "put":
                one.put(second)
            elif what == "go":
                one.request.go()
            else:
                one.request.cancel()
        elif scheduler.idle:
            continue
        else:
            house.act(what, first, second)
        house.check()
    for one in held:
        one.request.go()
    house.run()
    house.tell()
    for sequence in [*added, *[one.sequence for one in held], *[one.sequence for one in exports]]:
        assert sequence.gone
    for number, export in enumerate(exports):
        if number not in stopped and export.sequence.owner != "failed":
            assert (export.names, export.ends) == (export.wanted, [None])
    house.nothing_left()
