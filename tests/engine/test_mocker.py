"""The mocker in a real worker, in virtual time: what it says and when, and that a continuation is the same answer."""

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod import sample
from dynamod.actor import System
from dynamod.actor.testing import run, virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.output import OutputIds, table, vocabulary_size
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.message import tokens

LATER = TIMINGS["later"]


def engine_of(house: Any) -> Mocker:
    engine = house.workers[-1]._engine
    assert isinstance(engine, Mocker)
    return engine


@virtual
async def test_it_takes_the_time_of_a_real_engine(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, num_gpu_blocks=1000)
        begin = asyncio.get_running_loop().time()
        answer = await house.ask(words.generate(list(range(100)), max_tokens=4)).wait()
        times = [time - begin for time in answer.times[2:]]
        expected, total = [LATER.prefill_ms(100)], 0.0
        expected += [LATER.decode_ms((100 + made) / 4000) for made in (1, 2, 3)]
        for time, ms in zip(times, expected, strict=True):
            total += ms / 1000
            assert time == pytest.approx(total)
        assert answer.finish == "length"
        assert getattr(answer.deltas[-2], "finish", None) is None
        assert len(answer.ids) == len(answer.deltas) - 2 == 4  # one delta per step, the finish with the last token
        assert (answer.deltas[1].ids, answer.deltas[1].cached_tokens) == (b"", 0), "said once, before the first"


@virtual
async def test_what_another_instance_made_is_no_cached_prompt(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        whole = await house.ask(words.generate(list(range(10)), max_tokens=20)).wait()
        rest = await house.ask(words.generate(list(range(10)), whole.ids[:15], max_tokens=20)).wait()
        assert rest.ids == whole.ids[15:]
        assert rest.deltas[1].cached_tokens == 10, "of 24 tokens that were cached"
        other = await house.ask(words.generate([*range(7), 99], max_tokens=1)).wait()
        assert other.deltas[1].cached_tokens == 4, "one block"


@virtual
async def test_speedup(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, speedup_ratio=10)
        answer = await house.ask(words.generate([1] * 100, max_tokens=1)).wait()
        assert answer.times[1] - answer.times[0] == pytest.approx(LATER.prefill_ms(100) / 10_000)
        house = await words.House(system, words.Mock, EngineOptions("n", arguments={"speedup_ratio": 0})).start("other")
        answer = await house.ask(words.generate([1] * 100, max_tokens=50)).wait()
        assert (len(answer.ids), answer.times[0]) == (50, answer.times[-1])


@virtual
async def test_loading_takes_the_startup_time(words: Any) -> None:
    async with System() as system:
        begin = asyncio.get_running_loop().time()
        house = await words.mocker(system, startup_time=30)
        assert asyncio.get_running_loop().time() - begin == 30
        [card] = house.published
    assert (card.engine, card.kind, card.kv_cache_block_size) == ("mocker", "tokens", 4)
    capabilities = card.capabilities
    assert capabilities.exact_continuation
    assert capabilities.kv_events
    assert capabilities.seed
    assert capabilities.min_tokens
    assert not capabilities.logprobs


@virtual
async def test_without_prefix_caching_there_are_no_events_and_nothing_is_shared(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, enable_prefix_caching=False)
        assert not house.published[0].capabilities.kv_events
        answers = [house.ask(words.generate([1] * 20, max_tokens=8)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert house.statistics.engine.active_blocks == 12
        for answer in answers:
            await answer.wait()
        assert house.statistics.engine.hit_rate == 0
        assert engine_of(house).ranks[0].scheduler.pool.names() == []


@virtual
async def test_a_prefix_that_is_cached_shortens_the_first_token(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        waits = []
        for last in (1, 2):
            answer = await house.ask(words.generate([*range(100), last], max_tokens=1)).wait()
            waits.append((answer.times[1] - answer.times[0]) * 1000)
        assert waits == pytest.approx([LATER.prefill_ms(101), LATER.prefill_ms(1)])
        assert house.statistics.engine.hit_rate == pytest.approx(100 / 202)


@virtual
async def test_the_answer_depends_on_prompt_seed_and_position_alone(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        other = await words.House(system, words.Mock, EngineOptions("other", arguments={"seed": 3})).start("other")

        async def ask(at: Any, ids: list[int], seed: int | None = None) -> list[int]:
            answer: list[int] = (await at.ask(words.generate(ids, seed=seed, max_tokens=150)).wait()).ids
            return answer

        first, same, by_itself, other_prompt, other_seed, far, engine_seed = await asyncio.gather(
            ask(house, [1, 2], 7),
            ask(other, [1, 2], 7),
            ask(house, [1, 2]),
            ask(house, [2, 1], 7),
            ask(house, [1, 2], -(2**63)),
            ask(house, [1, 2], 2**63 - 1),
            ask(other, [1, 2]),
        )
    assert first == same
    assert all(1000 <= index < 2000 for index in first)
    assert len({tuple(one) for one in (first, by_itself, other_prompt, other_seed, far, engine_seed)}) == 6
    assert len(set(first)) > 100


@given(data=st.data(), length=st.integers(1, 40), limit=st.integers(1, 60), seed=st.none() | st.integers(0, 9))
def test_another_instance_goes_on_where_the_first_stopped(
    words: Any, data: Any, length: int, limit: int, seed: int | None
) -> None:
    async def main() -> None:
        async with System() as system:
            house = await words.mocker(system, num_gpu_blocks=data.draw(st.integers(11, 40)), speedup_ratio=0)
            ids = list(range(length))
            whole = await house.ask(words.generate(ids, seed=seed, max_tokens=limit)).wait()
            cut = data.draw(st.integers(0, len(whole.ids)))
            rest = await house.ask(words.generate(ids, whole.ids[:cut], seed, max_tokens=limit)).wait()
            assert whole.ids[:cut] + rest.ids == whole.ids
            assert rest.finish == whole.finish == "length"
            names = engine_of(house).ranks[0].scheduler.pool.names()
            assert len(names) == len(set(names))

    run(main())


@virtual
async def test_an_answer_that_was_preempted_is_the_same(words: Any) -> None:
    for mode in ("lifo", "fifo"):
        async with System() as system:
            roomy = await words.mocker(system)
            requests = [words.generate([name] * 12, max_tokens=40) for name in range(5)]
            expected = [(await roomy.ask(request).wait()).ids for request in requests]
        async with System() as system:
            tight = await words.mocker(system, num_gpu_blocks=20, preemption_mode=mode)
            answers = [tight.ask(request) for request in requests]
            for answer in answers:
                await answer.wait()
            assert tight.statistics.engine.preemptions > 0
        assert [answer.ids for answer in answers] == expected


@virtual
async def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, num_gpu_blocks=10, watermark=0.2)
        error = (await house.ask(words.generate([1] * 32, max_tokens=1)).wait()).error
        assert error is not None
        assert (error.error, error.code, error.retry) == ("BadRequest", "context_length_exceeded", False)
        assert "32 tokens" in error.message
        assert "room for 32 " in error.message
        most = await house.ask(words.generate([1] * 31, max_tokens=5)).wait()
        assert (len(most.ids), most.finish) == (1, "length")
        empty = await house.ask(words.generate([], max_tokens=5)).wait()
        assert empty.error is not None
        assert (empty.error.error, empty.error.message) == ("BadRequest", "the prompt is empty")


@virtual
async def test_without_max_tokens_it_goes_on_to_the_end_of_the_context(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, context_length=50, speedup_ratio=0)
        assert len((await house.ask(words.generate([1] * 20)).wait()).ids) == 30
        assert len((await house.ask(words.generate([1] * 20, max_tokens=100)).wait()).ids) == 30
        done = await house.ask(words.generate([1] * 20, [1] * 30)).wait()
        assert (done.ids, done.finish) == ([], "length")


@virtual
async def test_who_leaves_frees_blocks_at_once(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, max_num_seqs=1)
        running, waiting = (house.ask(words.generate([name] * 20, max_tokens=1000)) for name in (1, 2))
        await asyncio.sleep(0.5)
        engine = house.statistics.engine
        assert (engine.running, engine.waiting) == (1, 1)
        assert engine.active_blocks > 5
        got = len(running.ids)
        running.stream.cancel()
        engine = house.statistics.engine
        assert (engine.running, engine.active_blocks) == (0, 0)
        waiting.stream.cancel()
        assert house.statistics.engine.waiting == 0
        await asyncio.sleep(10)
        steps = house.statistics.engine.steps
        await asyncio.sleep(3600)
        assert house.statistics.engine.steps == steps  # idle: no steps
        assert (len(running.ids), waiting.ids) == (got, [])
        assert (house.statistics.open, house.statistics.cancelled) == (0, 2)


@virtual
async def test_a_reader_that_leaves_while_tokens_are_handed_out(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        answers = [house.ask(words.generate([name] * 9, max_tokens=30)) for name in range(4)]

        class Leaver(words.Answer):  # type: ignore[misc]
            def delta(self, delta: Any) -> None:
                super().delta(delta)
                if len(self.ids) == 3:
                    answers[3].stream.cancel()  # its token of the same step comes later
                    self.stream.cancel()

        leaver = Leaver()
        request = words.generate([9] * 9, max_tokens=30)
        leaver.stream = house.stranger().open(words.instance, request, leaver)
        for answer in answers[:3]:
            assert len((await answer.wait()).ids) == 30
        assert len(leaver.ids) == 3
        assert house.statistics.engine.active_blocks == 0


@virtual
async def test_statistics_say_what_the_step_works_on(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        house.ask(words.generate([1] * 100, max_tokens=2))
        await asyncio.sleep(0.001)
        engine = house.statistics.engine
        assert (engine.running, engine.tokens, engine.steps, engine.step_tokens) == (1, 0, 1, 101)
        assert engine.in_step_for == pytest.approx(0.001)
        await asyncio.sleep(1)
        engine = house.statistics.engine
        assert (engine.running, engine.tokens, engine.steps, engine.step_tokens) == (0, 2, 2, 0)
        assert engine.in_step_for is None
        assert (engine.total_blocks, engine.active_blocks, engine.cached_blocks) == (64, 0, 25)


def test_ids_stay_in_the_vocabulary_and_are_never_the_end() -> None:
    def ids(vocabulary: int, *never: int) -> list[int]:
        return [tokens.unpack(one)[0] for one in table(vocabulary, never)]

    assert ids(32000) == list(range(1000, 2000))
    assert ids(32000, 2, 1500) == [*range(1000, 1500), *range(1501, 2000)]
    assert ids(1024, 1023) == list(range(24, 1023))
    assert ids(5, 4) == [0, 1, 2, 3]
    assert ids(1, 0) == [0]
    answer = OutputIds(tokens.pack([1]), 0, table(1024, [1023]))
    answer.reach(10_000)
    assert tokens.pack([1023]) not in answer.ids


def test_the_size_of_the_vocabulary(tmp_path: Any) -> None:
    folder = sample.path("sample")
    assert vocabulary_size(folder) == 1024
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 9}}')
    assert vocabulary_size(tmp_path) == 9
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert vocabulary_size(tmp_path) == 1024


async def test_with_a_models_files(words: Any) -> None:
    async with System() as system:
        arguments = {"speedup_ratio": 0}
        options = EngineOptions("mine", sample.path("sample"), context_length=512, arguments=arguments)
        house = await words.House(system, Mocker, options).start()
        [card] = house.published
        answer = await house.ask(words.generate([5] * 10, max_tokens=20)).wait()
    assert (card.name, card.context_length, card.kv_cache_block_size) == ("mine", 512, 64)
    assert len(answer.ids) == 20
    assert all(24 <= index < 1023 for index in answer.ids)
