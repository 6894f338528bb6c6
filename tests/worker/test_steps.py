"""What a worker tells those who want to know of its engine's steps."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.echo import EchoCore
from dynamod.ingress.subscriptions import SILENCE
from dynamod.message.discovery import ModelCard
from dynamod.message.ingress import Failed
from dynamod.message.kv_events import (
    ForwardPass,
    Load,
    QueuedRequests,
    RequestStarted,
    ScheduledRequests,
    pack,
    unpack,
)
from dynamod.message.worker import Open, Subscribe
from dynamod.worker.events import BACKLOG, STEP_INTERVAL, STEP_TOKENS
from dynamod.worker.subscriptions import LOAD_INTERVAL, STEP_LOOKS

NOTHING = ScheduledRequests(0, 0, 0.0, 0, 0, 0, 0.0)
EMPTY = QueuedRequests(0, 0, 0.0, 0, 0, 0.0)


def follow(house: Any) -> Any:
    return house.ask(Subscribe("planner", steps=True))


def events(stream: Any, kind: type) -> list[Any]:
    return [event for item in stream.news for event in item if isinstance(event, kind)]


def busy(stream: Any) -> list[ForwardPass]:
    return [step for step in events(stream, ForwardPass) if step.wall_time]


async def passed() -> None:
    """Until the worker has sent what there is."""
    await asyncio.sleep(LOAD_INTERVAL * (STEP_LOOKS + 1))


@virtual
async def test_it_begins_with_the_ranks_and_the_load(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, dp_size=2)
        stream = follow(house)
        await asyncio.sleep(0)
        [[*ranks, load]] = stream.news
        assert ranks == [ForwardPass(0, 0.0, NOTHING, EMPTY, rank, 0) for rank in (0, 1)]
        assert isinstance(load, Load)


@virtual
async def test_a_step_is_described_by_what_it_computes(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, max_num_seqs=2)
        await house.ask(words.generate(list(range(8)), max_tokens=1)).wait()  # two blocks are cached now
        stream = follow(house)
        for length in (10, 4, 5, 7):
            house.ask(words.generate(list(range(length)), max_tokens=4))
        await passed()
        first, second, *_ = busy(stream)
        assert (first.counter_id, second.counter_id) == (2, 3)
        # 8 of the 10 tokens are cached, and of the 4 all but the last one, which gives the next token.
        assert first.scheduled_requests == ScheduledRequests(2, 2 + 1, 9.0, 8 + 3, 0, 0, 0.0)
        assert first.queued_requests == QueuedRequests(2, 5 + 7, 1.0, 0, 0, 0.0)
        assert second.scheduled_requests == ScheduledRequests(0, 0, 0.0, 0, 2, 11 + 5, 9.0)
        assert second.queued_requests == first.queued_requests
        assert first.wall_time == pytest.approx(0.0165, abs=0.001)
        assert first.running_prefill_tokens == 0


@virtual
async def test_a_long_prompt_is_computed_in_parts(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, max_num_batched_tokens=16, speedup_ratio=0.1)
        stream = follow(house)
        await house.ask(words.generate(list(range(40)), max_tokens=1)).wait()
        await passed()
        parts = [
            (step.scheduled_requests.sum_prefill_kv_tokens, step.scheduled_requests.sum_prefill_tokens)
            for step in busy(stream)
        ]
        assert parts == [(0, 16), (16, 16), (32, 8)]
        assert [step.running_prefill_tokens for step in busy(stream)] == [24, 8, 0]


@virtual
async def test_sequences_that_gave_way_wait_as_answers(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, num_gpu_blocks=6, enable_prefix_caching=False, speedup_ratio=0.1)
        stream = follow(house)
        answers = [house.ask(words.generate([index] * 8, max_tokens=12)) for index in range(2)]
        for answer in answers:
            await answer.wait()
        await passed()
        gave_way = {step.queued_requests for step in busy(stream)} - {EMPTY}
        assert {queued.num_decode_requests for queued in gave_way} == {1}
        assert all(queued.num_prefill_requests == 0 and queued.sum_decode_kv_tokens > 8 for queued in gave_way)


@virtual
async def test_an_idle_rank_says_so(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        stream = follow(house)
        await house.ask(words.generate([1, 2, 3], max_tokens=3)).wait()
        await passed()
        last = events(stream, ForwardPass)[-1]
        assert (last.counter_id, last.wall_time, last.scheduled_requests) == (3, 0.0, NOTHING)
        before = len(stream.news)
        await asyncio.sleep(SILENCE / 2)
        assert len(stream.news) > before  # it is not taken for lost


@virtual
async def test_requests_of_all_processes_are_told_without_blocks(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        stream = follow(house)
        house.ask(words.generate(list(range(10)), max_tokens=1))
        house.ask(words.generate([7] * 5, max_tokens=1), house.stranger())
        await passed()
        assert events(stream, RequestStarted) == [RequestStarted(1, (), 10), RequestStarted(2, (), 5)]
        assert {type(event) for item in stream.news for event in item} == {ForwardPass, Load, RequestStarted}


@virtual
@pytest.mark.parametrize("speed", [0.05, 1.0, 100.0])
async def test_of_many_steps_some_are_told(words: Any, speed: float) -> None:
    async with System() as system:
        house = await words.mocker(system, speedup_ratio=speed, num_gpu_blocks=1024)
        stream = follow(house)
        began = asyncio.get_running_loop().time()
        await house.ask(words.generate([1, 2, 3], max_tokens=3000)).wait(10_000)
        took = asyncio.get_running_loop().time() - began
        await passed()
        numbers = [step.counter_id for step in busy(stream)]
        assert numbers == sorted(set(numbers))
        fewest = max(3000 / STEP_TOKENS, took / STEP_INTERVAL)
        assert 0.5 * fewest < len(numbers) < 3 * fewest
        assert events(stream, ForwardPass)[-1].counter_id == 3000  # those that were left out are counted


@virtual
async def test_nobody_is_told_of_steps_who_does_not_ask(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        router = house.subscribe()
        engine = house.workers[-1]._engine
        await house.ask(words.generate([1, 2, 3], max_tokens=3)).wait()
        assert engine.stepped is None
        stream = follow(house)
        await asyncio.sleep(0)
        assert engine.stepped is not None
        assert house.statistics.feeds == 2
        stream.stream.cancel()
        await passed()
        assert engine.stepped is None
        assert not events(router, ForwardPass)


@virtual
async def test_a_slow_reader_is_dropped(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        stream = follow(house)
        await asyncio.sleep(0)
        [reply] = house.workers[-1]._subscriptions._steps._subscribers
        reply._outbox.backlog = lambda _stream: BACKLOG
        await passed()
        assert isinstance(stream.error, Failed)
        assert stream.error.retry


class Core(EchoCore):
    """echo_core without a model's files."""

    async def start(self) -> None:
        self._card = ModelCard(self.options.name)


@virtual
async def test_an_engine_that_knows_no_steps_has_a_load(words: Any) -> None:
    async with System() as system:
        house = await words.House(system, Core, EngineOptions("m")).start()
        stream = follow(house)
        await passed()
        assert {type(event) for item in stream.news for event in item} == {Load}
        assert house.statistics.steps == ()


def test_what_is_not_known_is_not_there() -> None:
    [step] = unpack(pack((ForwardPass(3, 0.5, ScheduledRequests(num_decode_requests=2)),)))
    assert isinstance(step, ForwardPass)
    assert step.scheduled_requests.num_decode_requests == 2
    assert step.scheduled_requests.sum_prefill_tokens is step.queued_requests.sum_prefill_tokens is None


def test_old_and_new_processes_understand_each_other() -> None:
    old = msgspec.msgpack.encode(["open", 1, "n.c.e", ["subscribe", "events"]])
    assert msgspec.msgpack.decode(old, type=Open).request == Subscribe("events", steps=False)
