"""A step of the engine as subscribers get it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dynamod.message.kv_events import ForwardPass, QueuedRequests, ScheduledRequests

from ..step_clock import StepClock
from .scheduler import BatchScheduler

NOTHING = ScheduledRequests(0, 0, 0.0, 0, 0, 0, 0.0)
"""What a rank without work computes."""


class Chunk(NamedTuple):
    """A part of a prompt that a step computes: tokens of the prompt, in the KV cache before, computed by the step."""

    length: int
    cached: int
    computed: int


def forward_pass(
    rank: int, clock: StepClock, scheduler: BatchScheduler[Any], chunks: Sequence[Chunk], decoded: Sequence[int]
) -> ForwardPass:
    """The step that a rank computes now. `decoded`: KV tokens of each answer that gets a token."""
    prompts, preempted = scheduler.lengths()
    queued = QueuedRequests(*summary(prompts), *summary(preempted))
    now = clock.current
    if now is None:
        return ForwardPass(clock.steps, 0.0, NOTHING, queued, rank, scheduler.begun)
    number, _, variance = summary([one.length for one in chunks])
    computed, cached = sum([one.computed for one in chunks]), sum([one.cached for one in chunks])
    scheduled = ScheduledRequests(number, computed, variance, cached, *summary(decoded))
    return ForwardPass(clock.steps, now[0], scheduled, queued, rank, scheduler.begun)


def milliseconds(seconds: float) -> float:
    """For a load, with two digits, because subscribers are told of each change."""
    return float(f"{1000 * seconds:.2g}")


def summary(values: Sequence[int]) -> tuple[int, int, float]:
    """Number, sum and variance (of the population)."""
    count, total = len(values), sum(values)
    if count < 2:
        return count, total, 0.0
    mean = total / count
    return count, total, sum([(value - mean) ** 2 for value in values]) / count
