"""What llama.cpp tells of its steps."""

import asyncio
import os
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.message.kv_events import ForwardPass, QueuedRequests, RequestStarted, ScheduledRequests
from dynamod.message.worker import Subscribe

pytestmark = pytest.mark.engine


async def serve(words: Any, system: System, **arguments: Any) -> Any:
    options = EngineOptions("m", sample.path("sample.gguf"), arguments=arguments)
    house = await words.House(system, LlamaCpp, options).start()
    engine = house.workers[-1]._engine
    engine.steps = []

    def stepped(rank: int) -> int:
        engine.steps.append(engine.forward_pass(rank))
        return 1

    engine.stepped = stepped
    return house


def steps_of(house: Any) -> list[ForwardPass]:
    steps: list[ForwardPass] = house.workers[-1]._engine.steps
    return steps


async def test_parts_of_a_prompt_and_then_tokens(words: Any, system: System) -> None:
    house = await serve(words, system, max_num_batched_tokens=64)
    await house.ask(words.generate(list(range(100, 250)), max_tokens=4, ignore_eos=True)).wait()
    prompts = [step for step in steps_of(house) if step.scheduled_requests.num_prefill_requests]
    rest = steps_of(house)[len(prompts) :]
    computed = [step.scheduled_requests.sum_prefill_tokens for step in prompts]
    assert sum(count or 0 for count in computed) == 150
    assert len(computed) >= 3
    kv = [step.scheduled_requests.sum_prefill_kv_tokens for step in prompts]
    left = [step.running_prefill_tokens for step in prompts]
    for index in range(len(prompts)):
        assert kv[index] == sum(count or 0 for count in computed[:index])
        assert left[index] == 150 - sum(count or 0 for count in computed[: index + 1])
    assert [step.scheduled_requests for step in rest] == [
        ScheduledRequests(0, 0, 0.0, 0, 1, 150 + made, 0.0) for made in (1, 2, 3)
    ]
    assert all(step.wall_time > 0 for step in steps_of(house))
    numbers = [step.counter_id for step in steps_of(house)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_several_run_and_the_others_wait(words: Any, system: System) -> None:
    house = await serve(words, system, max_num_seqs=2)
    answers = [house.ask(words.generate([300 + n] * (20 + 10 * n), max_tokens=8, ignore_eos=True)) for n in range(4)]
    for answer in answers:
        await answer.wait()
    steps = steps_of(house)
    assert max(step.scheduled_requests.num_decode_requests or 0 for step in steps) == 2
    assert any(step.scheduled_requests.var_decode_kv_tokens == 25 for step in steps)  # lengths that differ by 10
    waited = {step.queued_requests for step in steps}
    assert QueuedRequests(2, 40 + 50, 25.0, 0, 0, 0.0) in waited
    assert QueuedRequests(0, 0, 0.0, 0, 0, 0.0) in waited


async def test_a_subscriber_gets_them(words: Any, system: System) -> None:
    house = await serve(words, system)
    stream = house.ask(Subscribe("planner", steps=True))
    await house.ask(words.generate(list(range(100, 250)), max_tokens=20, ignore_eos=True)).wait()

    def found(kind: type) -> list[Any]:
        return [event for item in stream.news for event in item if isinstance(event, kind)]

    async with asyncio.timeout(20):
        while not any(step.wall_time == 0 and step.counter_id for step in found(ForwardPass)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [event.prefill for event in found(RequestStarted)] == [150]
    assert sum(step.scheduled_requests.sum_prefill_tokens or 0 for step in found(ForwardPass)) > 0


async def test_steps_of_one_token(words: Any, system: System) -> None:
    house = await serve(words, system, max_num_batched_tokens=1, max_num_seqs=1)
    answer = await house.ask(words.generate([300, 301, 302], max_tokens=2, ignore_eos=True)).wait()
    assert len(answer.ids) == 2
    assert [step.scheduled_requests.sum_prefill_tokens for step in steps_of(house)][:3] == [1, 1, 1]
