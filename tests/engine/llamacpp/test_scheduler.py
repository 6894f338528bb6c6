"""The scheduler over cells that only remember: whoever computes has its own tokens before it, and nothing leaks."""

from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.llamacpp.scheduler import TURN, Row
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens

from .remembering import SIZE, House


def counts(rows: list[Row]) -> list[int]:
    return [row.count for row in rows]


def test_running_sequences_come_first_and_prompts_are_cut() -> None:
    house = House(64)
    first = house.add([1, 2, 3], answer=30)
    assert counts(house.step()) == [3]
    house.add(list(range(100, 150)), answer=1)
    assert counts(house.step()) == [1, 12], "the budget of 16, in whole blocks"
    assert counts(house.step(chunk=8)) == [1, 8], "the pace"
    assert counts(house.step(chunk=1)) == [1, 1], "a step never stands still"
    house.run()
    assert first.gone
    assert not house.memory.cells or house.told


def test_a_known_prefix_is_not_computed_again() -> None:
    house = House(64)
    prompt = list(range(10, 30))
    house.add(prompt)
    house.run()
    house.steps.clear()
    again = house.add([*prompt, 99])
    house.run()
    assert house.computed() == [1], "20 of 21 tokens were there"
    assert again.gone
    house.steps.clear()
    house.add(prompt)
    house.run()
    assert house.computed() == [4], "the last block again: somebody must give the next token"


def test_equal_prompts_at_the_same_time_are_computed_once() -> None:
    house = House(64, budget=64)
    prompt = list(range(40))
    for _ in range(4):
        house.add(prompt, answer=2)
    house.run()
    computed = sum(house.computed())
    assert computed == 40 + 3 * 4 + 4 * 2, "the prompt, three last blocks, the answers"


def test_the_newest_gives_way_and_the_oldest_never() -> None:
    house = House(8)
    old, new = house.add([1, 2, 3, 4, 5], answer=24), house.add([6, 7, 8, 9, 10], answer=24)
    while not old.gone:
        house.step()
        assert old.slot >= 0 or old.gone
    assert house.scheduler.preemptions > 0
    house.run()
    assert (len(old.ids), len(new.ids)) == (29, 29)


def test_who_leaves_frees_its_cells() -> None:
    house = House(16, caching=False)
    gone, waits = house.add([1] * 20, answer=5), house.add([2] * 60, answer=3)
    house.step()
    house.scheduler.remove(gone)
    house.scheduler.remove(gone)
    house.step()
    assert waits.slot >= 0
    house.scheduler.remove(waits)
    assert house.scheduler.idle
    assert house.memory.cells == []
    assert house.cells.pool.active == 0


def test_slots_of_old_answers_are_used_again() -> None:
    house = House(1000, seqs=2, cached=2)
    for number in range(20):
        house.add([number] * 9, answer=2)
        house.run()
    kept = [number for number in range(20) if set(block_hashes(tokens.pack([number] * 8), SIZE)) & house.told]
    assert kept == [16, 17, 18, 19], "the latest, as many as there are slots"


def test_idle_blocks_are_few_unless_prompts_ask_for_them_again() -> None:
    house = House(1000, seqs=2, cached=60, idle=6)
    for number in range(20):
        house.add([number] * 9, answer=2)
        house.run()
    assert house.cells.pool.cached == len(house.told) == 6, "the latest"
    for _ in range(3):
        for number in range(20):
            house.add([number] * 9, answer=2)
            house.run()
    assert house.cells.pool.cached == 40, "two of each"
    cached = house.scheduler.cached_tokens
    for number in range(20):
        house.add([number] * 9, answer=2)
        house.run()
    assert house.scheduler.cached_tokens - cached == 20 * 8
    for number in range(100, 300):
        house.add([number] * 9, answer=2)
        house.run()
    assert house.cells.pool.cached == 6, "other prompts come now"


def test_turns_of_a_conversation_share_one_slot() -> None:
    house = House(1000, seqs=2, cached=2)
    history = list(range(5))
    for turn in range(20):
        history = list(house.add([*history, 50 + turn], answer=3).ids)
        sequence = house.scheduler.waiting[0]
        house.run()
        history = list(sequence.ids)
    assert len(house.cells._kept) == 1


def test_blocks_in_use_outlive_the_slot_that_kept_them() -> None:
    house = House(1000, seqs=2, cached=1, budget=64)
    shared = list(range(20, 29))
    house.add(shared)
    house.run()
    short, long = house.add([*shared, 1], answer=1), house.add([*shared, 2], answer=60)
    while not short.gone:
        house.step()
    for number in range(3):  # their blocks take all slots but the one in use
        other = house.add([100 + number] * 9, answer=1)
        while not other.gone:
            house.step()
    assert house.told >= set(block_hashes(tokens.pack(shared), SIZE))
    assert not long.gone
    house.run()
    assert house.told >= set(block_hashes(tokens.pack(long.ids), SIZE))


@pytest.mark.parametrize("fault", [0, 1, 2, None])
def test_only_the_sequence_at_fault_ends(fault: int | None) -> None:
    house = House(64)
    all_of_them = [house.add([number] * (5 + number), answer=4) for number in range(3)]
    broken = all_of_them[fault] if fault is not None else None
    for _ in range(100):
        if house.scheduler.idle:
            break
        house.step(broken=broken)
    assert house.scheduler.idle
    for sequence in all_of_them:
        assert sequence.gone
        assert (sequence.owner == "failed") == (sequence is broken)
        assert sequence is broken or sequence.owner == 0


def test_steps_are_known_ahead_while_there_is_nothing_to_decide() -> None:
    house = House(64)
    scheduler = house.scheduler
    first, second = house.add([1, 2, 3], answer=9), house.add([4] * 5, answer=1)
    rows = scheduler.plan(1000)
    assert scheduler.ahead(rows, lambda _one: True) == [Row(first, 3, 1, True), Row(second, 5, 1, True)]
    assert scheduler.ahead(rows, lambda one: one is first) == [Row(first, 3, 1, True)]
    scheduler.remove(second)
    assert scheduler.ahead(rows, lambda _one: True) == [Row(first, 3, 1, True)]
    house.add([9] * 30, answer=0)
    assert scheduler.ahead(rows, lambda _one: True) == [], "somebody waits"
    scheduler.commit(rows)
    house.answer(first)
    rows = scheduler.plan(1000)
    assert counts(rows) == [1, 12]
    assert scheduler.ahead(rows, lambda _one: True) == [], "a prompt goes on"
    full = House(2)
    full.add([1] * 8, answer=0)
    assert full.scheduler.ahead(full.scheduler.plan(1000), lambda _one: True) == [], "there is no cell"


def test_each_adapter_has_its_turns() -> None:
    house = House(200, seqs=8)
    house.scheduler.adapters = True
    for number, adapter in enumerate(("", "a", "", "b", "a", "")):
        house.add([number] * 5, answer=40, adapter=adapter)
    turns = [rows[0].sequence.adapter for rows in (house.step() for _ in range(9 * TURN))]
    assert [len(list(same)) for _, same in groupby(turns)] == [TURN] * 9
    assert all(set(turns[first : first + 3 * TURN]) == {"", "a", "b"} for first in range(6 * TURN))
    late = house.add([9] * 5, answer=1, adapter="c")
    for _ in range(4 * TURN):
        house.step()
    assert late.gone, "nobody waits for longer than the turns of the others"
    house.run()


def test_a_turn_ends_when_there_is_nothing_to_compute() -> None:
    house = House(200, seqs=8)
    house.scheduler.adapters = True
    house.add([1] * 5, answer=30, adapter="a")
    house.step()
    house.step()
    short = house.add([2] * 5, answer=1)
    while not short.gone:
        house.step()
    assert [rows[0].sequence.adapter for rows in house.steps] == ["a"] * TURN + ["", ""]
    house.step()
    assert house.steps[-1][0].sequence.adapter == "a"
    house.run()


def test_the_steps_of_a_turn_are_known_ahead() -> None:
    house = House(64)
    scheduler = house.scheduler
    scheduler.adapters = True
    first, second = house.add([1, 2, 3], answer=9, adapter="a"), house.add([4] * 5, answer=9, adapter="b")
    rows = scheduler.plan(1000)
    assert [row.sequence for row in rows] == [first]
    for step in range(1, TURN):
        ahead = scheduler.ahead(rows, lambda _one: True)
        assert ahead == [Row(first, 2 + step, 1, True)]
        scheduler.commit(rows)
        house.answer(first)
        rows = ahead
    assert scheduler.ahead(rows, lambda _one: True) == [], "the other has its turn"
    scheduler.commit(rows)
    house.answer(first)
    rows = scheduler.plan(1000)
    assert [row.sequence for row in rows] == [second]
    scheduler.remove(first)
    assert scheduler.ahead(rows, lambda _one: True) == [Row(second, 5, 1, True)]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["", "a", "b"])), min_size=1, max_size=6))
def test_steps_begun_ahead_are_those_that_would_have_been(added: list[tuple[int, str]]) -> None:
    """As long as nobody comes or leaves."""
    seen: list[list[tuple[str, tuple[int, ...], int]]] = []
    for ahead in (False, True):
        house = House(200, seqs=8)
        house.scheduler.adapters = True
        for number, (length, adapter) in enumerate(added):
            house.add([number] * length, answer=4 * length, adapter=adapter)
        rows: list[Row] = []
        steps: list[list[tuple[str, tuple[int, ...], int]]] = []
        while not house.scheduler.idle:
            rows = rows or house.scheduler.plan(1000)
            steps.append(sorted((row.sequence.adapter, tuple(row.sequence.ids[:1]), row.start) for row in rows))
            following = house.scheduler.ahead(rows, lambda sequence: sequence.owner > 0) if ahead else []
            house.scheduler.commit(rows)
            for row in rows:
                house.answer(row.sequence)
            rows = following
        seen.append(steps)
    assert seen[0] == seen[1]


def test_blocks_for_others_wait_for_no_step_that_is_begun_ahead() -> None:
    house = House(64, seqs=8)
    house.scheduler.adapters = True
    house.add([1, 2, 3], answer=9, adapter="a")
    rows = house.step()
    house.export([4] * 9)
    rows = house.scheduler.plan(4)
    assert {row.sequence.adapter for row in rows} == {"a"}
    assert house.scheduler.ahead(rows, lambda _one: True) == []


_PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=24)
_EVENT = st.one_of(
    st.tuples(st.just("add"), _PROMPT, st.integers(0, 8)),
    st.tuples(st.just("step"), st.integers(1, 20), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 100), st.just(0)),
    st.tuples(st.just("leave in a step"), st.integers(0, 100), st.just(0)),
    st.tuples(st.just("fail"), st.just(0), st.just(0)),
    st.tuples(st.just("ahead"), st.integers(0, 100), st.booleans()),
)


@given(
    st.lists(_EVENT, max_size=50),
    st.integers(8, 20),
    st.integers(1, 4),
    st.integers(4, 16),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([None, 0, 4]),
    st.booleans(),
)
def test_whatever_happens_everybody_has_its_own_tokens(
    events: list[Any], blocks: int, seqs: int, budget: int, cached: int, caching: bool, idle: int | None, adapters: bool
) -> None:
    house = House(blocks, seqs=seqs, budget=budget, cached=cached, caching=caching, idle=idle)
    scheduler, added = house.scheduler, []
    scheduler.adapters = adapters
    for what, first, second in events:
        if what == "add":
            added.append(house.add(first, answer=second, adapter=["", "a", "b"][second % 3] if adapters else ""))
        elif scheduler.idle:
            continue
        elif what == "step":
            house.step(chunk=first)
        elif what == "ahead":
            house.step_ahead(added[first % len(added)] if second else None)
        elif what == "leave":
            scheduler.remove(added[first % len(added)])
        else:
            rows = scheduler.plan(1000)
            for row in rows:
                house.memory.compute(row.sequence, row)
            if what == "fail":
                scheduler.failed(rows)
            else:
                scheduler.remove(added[first % len(added)])
                scheduler.commit(rows)
                for row in rows:
                    if row.last and not row.sequence.gone:
                        house.answer(row.sequence)
        house.check()
    house.run()
    assert all(sequence.gone for sequence in added)
    assert house.cells.pool.active == 0
    assert len(house.memory.cells) == len(house.told) * SIZE, "cells that nobody can find"
