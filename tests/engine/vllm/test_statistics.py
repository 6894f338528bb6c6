"""What vLLM's statistics say of its steps."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dynamod.engine.base import EngineOptions
from dynamod.engine.vllm.engine import Vllm
from dynamod.engine.vllm.statistics import Statistics
from dynamod.message.kv_events import ForwardPass, QueuedRequests, ScheduledRequests

NOTHING = ScheduledRequests(0, 0, 0.0, 0, 0, 0, 0.0)


def scheduled(running: int, waiting: int, **fields: Any) -> Any:
    cached = SimpleNamespace(queries=0, hits=0)
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        kv_cache_usage=0.5,
        prefix_cache_stats=cached,
        kv_connector_stats=None,
        **fields,
    )


def detailed(running: int, waiting: int) -> Any:
    details = SimpleNamespace(
        num_ctx_requests=2, num_ctx_tokens=90, num_generation_requests=5, num_generation_tokens=5, elapsed_ms=20.0
    )
    return scheduled(running, waiting, iteration_details=details)


def iteration(tokens: int, *ended: tuple[int, int, float]) -> Any:
    """`ended`: of each prompt whose request has ended its tokens, those from a cache, and the seconds it took."""
    names = ("num_prompt_tokens", "num_cached_tokens", "prefill_time")
    return SimpleNamespace(
        num_preempted_reqs=0,
        num_generation_tokens=tokens,
        inter_token_latencies_iter=[0.01] * tokens,
        finished_requests=[SimpleNamespace(**dict(zip(names, one, strict=True))) for one in ended],
    )


@dataclass(eq=False)
class Answer:
    """Stands for a reply: tokens of the answer so far."""

    sent: int


def serving(*requests: tuple[int, int], ranks: int = 1) -> tuple[Any, Statistics]:
    """An engine with requests: tokens of the prompt, and of the answer so far."""
    engine: Any = Vllm(EngineOptions("m"), lambda work, _name: asyncio.ensure_future(work))
    engine._llm = object()
    engine._statistics = found = Statistics(engine)
    found.blocks, found.count = 100, ranks
    engine.open.answers = {Answer(sent): count for count, sent in requests}
    engine.open.count = len(requests)
    return engine, found


def test_with_details_all_of_a_step_is_measured() -> None:
    engine, found = serving((100, 3), (50, 7), (40, 0), (30, 0), (10, 0))
    told: list[ForwardPass | None] = []

    def stepped(rank: int) -> int:
        told.append(engine.forward_pass(rank))
        return 100

    engine.stepped = stepped
    for _ in range(3):
        found.record(detailed(3, 2), iteration(5))
    assert told == [
        ForwardPass(
            number,
            0.02,
            ScheduledRequests(2, 90, None, None, 5, 103 + 57, 23.0**2),
            QueuedRequests(2, 30 + 10, 100.0),
        )
        for number in (1, 3)  # a step has 95 tokens
    ]
    assert (engine.counts.steps, engine.counts.queued, engine.counts.used_blocks) == (3, 2, 50)


def test_without_them_what_the_outputs_show() -> None:
    engine, found = serving((100, 3), (50, 7))
    told: list[Any] = []

    def stepped(rank: int) -> int:
        told.append(engine.forward_pass(rank))
        return 1

    engine.stepped = stepped
    for running in (2, 2, 0, 2):
        found.record(scheduled(running, 0), iteration(2))
    assert [step.counter_id for step in told] == [2, 3]  # nobody knows how long the first behind a pause has taken
    assert all(0 < step.wall_time < 1 for step in told)
    assert told[0].scheduled_requests == ScheduledRequests(None, None, None, None, 2, 160, 23.0**2)
    assert told[0].queued_requests == QueuedRequests(0, 0, 0.0)


def test_of_several_ranks_the_tokens_are_not_known() -> None:
    engine, found = serving((100, 3), (50, 0), ranks=2)
    found.record(detailed(1, 1), iteration(1), engine_idx=1)
    assert engine.forward_pass(0) == ForwardPass(0, 0.0, NOTHING, QueuedRequests(0, 0, 0.0))
    second = engine.forward_pass(1)
    assert second == ForwardPass(1, 0.02, ScheduledRequests(2, 90, None, None, 5), QueuedRequests(1), 1)
    assert engine.forward_pass(2) is None


def test_an_idle_one_says_so() -> None:
    engine, found = serving()
    found.record(detailed(0, 0), iteration(1))
    assert engine.forward_pass(0) == ForwardPass(1, 0.0, NOTHING, QueuedRequests(0, 0, 0.0))
    engine._llm = None
    assert engine.forward_pass(0) is None


def test_how_fast_prompts_are_computed_is_part_of_the_load() -> None:
    engine, found = serving()
    engine.block_size = 32
    found.record(detailed(1, 0), iteration(1, (50, 0, 9.0), (200, 150, 9.0), (900, 0, -5.0)))
    assert engine.load().prefill_ms == 0.0, "too short, mostly from a cache, never begun"
    found.record(detailed(1, 0), iteration(1, (300, 100, 0.1), (800, 0, 0.4)))
    assert engine.load().prefill_ms == 16.0
    for _ in range(100):
        found.record(detailed(1, 0), iteration(1, (1000, 0, 1.0)))
    assert engine.load().prefill_ms == 32.0, "what was long ago is forgotten"
