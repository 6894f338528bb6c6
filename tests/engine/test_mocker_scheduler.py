"""The scheduler's rules, one by one, and its timing."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.engine.mocker.arguments import MockerArguments
from dynamod.engine.mocker.scheduler import Scheduler, Sequence, Step
from dynamod.engine.mocker.timing import TIMINGS, Timing

LATER = TIMINGS["later"]


def scheduler(**arguments: Any) -> Scheduler:
    arguments = {"block_size": 4, "num_gpu_blocks": 100, "watermark": 0, **arguments}
    return Scheduler(MockerArguments(**arguments), LATER)


def sequence(name: int, length: int, output: int = 100, shared: int = 0) -> Sequence:
    """`shared` first blocks are those of every sequence; the others are its own."""

    def block(index: int) -> int:
        return index + 1 if index < shared else 1000 * name + index

    return Sequence(name, [block(index) for index in range(length // 4)], length, output, block)


def add(to: Scheduler, *sequences: Sequence) -> None:
    for one in sequences:
        to.add(one)


def owners(sequences: Any) -> list[Any]:
    return [one.owner for one in sequences]


def test_first_come_first_served_and_nobody_passes_one_that_does_not_fit() -> None:
    it = scheduler(num_gpu_blocks=10)
    add(it, sequence(1, 20), sequence(2, 24), sequence(3, 4))
    step = it.step()
    assert owners(it.running) == owners(step.tokens) == [1]
    assert owners(it.waiting) == [2, 3]


def test_at_most_max_num_seqs_run() -> None:
    it = scheduler(max_num_seqs=2)
    add(it, *(sequence(name, 4, 2) for name in (1, 2, 3)))
    assert owners(it.step().tokens) == [1, 2]
    assert owners(it.step().finished) == [1, 2]
    assert owners(it.step().tokens) == [3]


def test_the_watermark_stays_free_at_admission() -> None:
    it = scheduler(num_gpu_blocks=10, watermark=0.2)
    add(it, sequence(1, 16), sequence(2, 20))
    it.step()
    assert owners(it.running) == [1]  # 5 blocks are in use, 5 more would leave none of the 2
    assert it.fits(31)
    assert not it.fits(32)


def test_a_long_prompt_is_computed_in_chunks_beside_the_next() -> None:
    it = scheduler(max_num_batched_tokens=10)
    add(it, sequence(1, 24), sequence(2, 4))
    assert (it.step().prefilled, owners(it.running)) == (10, [1])
    assert it.pool.active == 6  # all its blocks with the first chunk
    assert it.step().prefilled == 10
    last = it.step()
    assert last.prefilled == 4 + 4
    assert owners(last.tokens) == [1, 2]


def test_without_chunks_a_prompt_waits_for_an_iteration_with_room() -> None:
    it = scheduler(max_num_batched_tokens=10, enable_chunked_prefill=False)
    add(it, sequence(1, 8), sequence(2, 4), sequence(3, 24))
    assert it.step().prefilled == 8
    assert it.step().prefilled == 4
    step = it.step()
    assert (step.prefilled, owners(step.tokens)) == (24, [1, 2, 3])


def test_an_iteration_costs_its_prefill_and_its_decodes() -> None:
    it = scheduler(num_gpu_blocks=100)
    add(it, sequence(1, 20), sequence(2, 30))
    step = it.step()
    assert step.ms == pytest.approx(LATER.prefill_ms(50))
    step = it.step()
    assert step.ms == pytest.approx(LATER.decode_ms((21 + 31) / 400))
    it.add(sequence(3, 7))
    step = it.step()
    assert step.ms == pytest.approx(LATER.prefill_ms(7) + LATER.decode_ms((22 + 32) / 400))
    assert owners(step.tokens) == [1, 2, 3]


def test_the_polynomials() -> None:
    assert LATER.prefill_ms(1000) == pytest.approx(0.4209989 + 15.18344 + 16.50142)
    assert LATER.decode_ms(0.5) == pytest.approx(-6.435 + 27.005 + 5.74)
    year = TIMINGS["2025"]
    assert year.prefill_ms(1000) == pytest.approx(1.25 + 74.1 + 26.2)
    assert year.decode_ms(0.5) == pytest.approx(-1.3675 + 21.94 + 19.44)
    assert Timing((0, 0, 0), (0, 0, -1)).decode_ms(0.5) == 0


def test_what_is_cached_is_not_computed_again() -> None:
    it = scheduler()
    add(it, sequence(1, 40, 1, shared=8))
    assert it.step().prefilled == 40
    again = sequence(2, 40, 1, shared=8)
    it.add(again)
    assert it.step().prefilled == 8
    assert again.cached == 32
    whole = sequence(3, 32, 1, shared=8)
    it.add(whole)
    assert it.step().prefilled == 1  # the last token gives the next one
    assert (it.prompt_tokens, it.cached_tokens) == (112, 64)


@pytest.mark.parametrize(("mode", "gives"), [("lifo", 2), ("fifo", 1)])
def test_who_gives_way_when_the_blocks_are_used_up(mode: str, gives: int) -> None:
    it = scheduler(num_gpu_blocks=4, preemption_mode=mode)
    first, second = sequence(1, 5, 6), sequence(2, 6, 6)
    add(it, first, second)
    it.step()
    it.step()
    assert it.pool.free == 0
    it.step()  # the second needs a block
    assert owners(it.waiting) == [gives]
    assert (it.preemptions, len(it.running)) == (1, 1)
    run_all(it)
    assert [first.generated, second.generated] == [6, 6]


def test_two_do_not_give_way_to_each_other_for_ever() -> None:
    """Found by hypothesis: each came back, filled the pool to the brim, and had to leave before its next token."""
    it = scheduler(num_gpu_blocks=11, preemption_mode="fifo", enable_prefix_caching=False, max_num_batched_tokens=10)
    add(it, sequence(1, 20, 13, shared=1), sequence(2, 10, 7, shared=2), sequence(3, 2, 11))
    run_all(it)
    assert it.preemptions > 0


def test_an_oldest_that_has_had_its_last_token_does_not_give_way() -> None:
    it = scheduler(num_gpu_blocks=4, preemption_mode="fifo")
    first, second = sequence(1, 5, 3), sequence(2, 6, 9)
    add(it, first, second)
    it.step()
    it.step()
    assert owners(it.step().finished) == [1]  # and the second has found no block for itself
    assert owners(it.waiting) == [2]
    run_all(it)
    assert [one.generated for one in (first, second)] == [3, 9]
    assert it.pool.active == 0


def run_all(it: Scheduler) -> list[Step]:
    steps = []
    while not it.idle:
        steps.append(it.step())
        assert len(steps) < 10_000, "it does not end"
        assert len(set(map(id, steps[-1].tokens))) == len(steps[-1].tokens)
    return steps


@given(
    data=st.data(),
    blocks=st.integers(4, 20),
    mode=st.sampled_from(["lifo", "fifo"]),
    chunked=st.booleans(),
    caching=st.booleans(),
    budget=st.integers(1, 30),
    seqs=st.integers(1, 5),
)
def test_all_that_fits_gets_its_tokens_and_leaves_nothing(
    data: Any, blocks: int, mode: str, chunked: bool, caching: bool, budget: int, seqs: int
) -> None:
    it = scheduler(
        num_gpu_blocks=blocks,
        preemption_mode=mode,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=caching,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
    )
    lengths = st.integers(1, 4 * blocks - 1)
    sequences, left = [], set()
    for name in range(1, data.draw(st.integers(1, 6)) + 1):
        length = data.draw(lengths)
        sequences.append(sequence(name, length, data.draw(st.integers(1, 4 * blocks - length)), shared=name % 3))
        it.add(sequences[-1])
    for _ in range(data.draw(st.integers(0, 5))):
        it.step()
        one = data.draw(st.sampled_from(sequences))
        if data.draw(st.booleans()):
            it.remove(one)
            left.add(one.owner)
        assert len(it.running) <= seqs
        assert it.pool.active <= blocks
    run_all(it)
    assert all(one.generated == one.max_tokens for one in sequences if one.owner not in left)
    assert it.pool.active == 0
