"""How many workers are needed. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .demand import Demand
from .observation import WorkerLoad
from .settings import PlannerSettings
from .steps import StepTimes

FULLEST = 0.95
"""Share of the time in which a worker computes prompts, at most: above, a queue only grows."""

MARGIN = 2 / 3
"""Share of the time between tokens that may be planned for on average: answers are not alike."""


class Estimate(NamedTuple):
    """With so many workers: share of time in which each computes prompts, and of late first tokens; seconds of gaps."""

    workers: int
    busy: float
    late: float
    gap: float


def estimate(demand: Demand, times: StepTimes, workers: int, ttft: float) -> Estimate:
    """What requests would see, each worker with its part of the demand. `ttft`: seconds.

    The wait for other prompts is that of a queue with one server (Kingman), with exponential tail.
    """
    busy = demand.work / workers
    gap = times.between(demand.context / workers) if demand.context else 0.0
    if busy >= FULLEST:
        return Estimate(workers, busy, 1.0, math.inf)
    late = 0.0
    if busy:
        scatter = (demand.bursts + demand.square / demand.service**2 - 1) / 2
        slack = ttft - demand.service
        late = busy * math.exp(-slack * (1 - busy) / (demand.service * scatter)) if slack > 0 else 1.0
    return Estimate(workers, busy, late, gap / (1 - busy))


def needed(demand: Demand, times: StepTimes, settings: PlannerSettings, most: int) -> Estimate:
    """The fewest workers with which first tokens and others come in time; `most` if that is not enough."""
    found = estimate(demand, times, 1, settings.ttft / 1000)
    for workers in range(1, most + 1):
        found = estimate(demand, times, workers, settings.ttft / 1000)
        if found.late <= settings.late and found.gap <= MARGIN * settings.itl / 1000:
            break
    return found


class Thresholds(NamedTuple):
    """Shares of the KV cache in use, at any worker and at all of them; or prompts that wait, per worker."""

    up: float
    down: float


ORIGINAL = {"throughput": Thresholds(1.0, 0.6), "latency": Thresholds(0.4, 0.1)}
"""Those of NVIDIA Dynamo's targets."""


def by_threshold(ready: Sequence[WorkerLoad], limits: Thresholds) -> int:
    """1: a worker is above the limit. -1: all are below, and would not be above it with one less. Else 0."""
    uses = [(one.context + one.queued_prefill) / one.capacity for one in ready if one.capacity]
    if not uses:
        return 0
    if max(uses) >= limits.up:
        return 1
    if len(ready) > 1 and max(uses) < limits.down and max(uses) * len(ready) / (len(ready) - 1) < limits.up:
        return -1
    return 0


def by_queue(ready: Sequence[WorkerLoad], limits: Thresholds) -> int:
    """1: more prompts wait per worker than the limit. -1: fewer, also with one worker less. Else 0."""
    waiting, workers = sum(one.queued_prompts for one in ready), len(ready)
    if not workers:
        return 0
    if waiting > limits.up * workers:
        return 1
    return -1 if workers > 1 and waiting < limits.down * (workers - 1) else 0
