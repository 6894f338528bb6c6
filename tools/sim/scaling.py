"""Which clusters have planners, over what kind of a pool, and what happens to both: drawn from the seed."""

import random as random_module
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from .planners import ScalingPlan
from .shape import SCALING, Event, Fault, Shape

if TYPE_CHECKING:
    from .faults import Plan
    from .places import Node

SHARE = 0.2
"""Of the seeds that have planners."""

TWO_POOLS = 0.5
"""Of the seeds with planners that can have two pools, which share their workers."""

OTHERS: tuple[Fault, ...] = ("drain", "scale")
"""Faults of workers that no planner has; with one, people scale its pool by hand."""

ROUGH: tuple[Fault, ...] = ("crash", "hang", "link", "start-fail", "by-hand")
"""Faults that gentle runs with planners do without: there may be few workers, and each scale-down moves requests."""


class ScalingFaults(Protocol):
    """What carries out the faults of planners."""

    def happen(self, event: Event, node: "Node", until: Callable[[float, Callable[[], object]], None]) -> None:
        """One of them. `until(seconds, end)`: end it then, or when all is healed."""


def draw_scaling(seed: int, shape: Shape, *, gentle: bool) -> ScalingPlan | None:
    """The planners of a run, None for most seeds. What is drawn for those without planners stays as it is."""
    random = random_module.Random(f"planners {seed}")
    if "planner" not in shape.faults or random.random() >= SHARE:
        return None
    kinds = [fault for fault in SCALING if fault in shape.faults and not (gentle and fault in ROUGH)]
    events = [_event(random, random.choice(kinds), shape) for _ in range(random.choice((0, 1, 2, 3, 5)))]
    least = 2 if gentle else random.choice((1, 1, 2))
    most = random.randint(max(3, least), max(4, shape.workers))
    devices = random.choice((0, 0, 2, 3))
    room = most if not devices else min(most, devices * shape.nodes)
    replicas = [0] * shape.nodes
    for number in range(random.randint(min(least, room), room)):
        replicas[number % shape.nodes] += 1
    config, prefill = _config(random, least, most), tuple[int, ...]()
    if "role-switch" in shape.faults and not gentle and room >= 2 * least + 1:
        replicas, prefill = _two_pools(seed, shape, config, least, room) or (replicas, prefill)
    return ScalingPlan(
        config=config,
        events=tuple(events),
        replicas=tuple(replicas),
        devices=devices,
        startup=random.choice((0.05, 0.3, 1.0)),
        clocks=tuple(random.choice((0.0, random.uniform(-20, 20))) for _ in range(shape.nodes)),
        strikes=random.choice((0.0, 0.2, 0.5)),
        moods=() if gentle else tuple((at, random.randint(least, most)) for at in _times(random, shape)),
        prefill=prefill,
    )


def _two_pools(
    seed: int, shape: Shape, config: dict[str, Any], least: int, room: int
) -> tuple[list[int], tuple[int, ...]] | None:
    """What nodes begin with of workers and of prefill workers; None: there is one pool."""
    random = random_module.Random(f"roles {seed}")
    if random.random() >= TWO_POOLS:
        return None
    prefill = random.randint(least, room - least)
    found = [[0] * shape.nodes, [0] * shape.nodes]
    for number in range(random.randint(prefill + least, room)):
        found[number < prefill][number % shape.nodes] += 1
    config["prefill-queue-scale-up-threshold"], config["prefill-queue-scale-down-threshold"] = 0.5, 0.2
    return found[0], tuple(found[1])


def _times(random: random_module.Random, shape: Shape) -> list[float]:
    """When somebody changes the limits: not at all, or so often that the pool is never at rest."""
    every, now, found = random.choice((0.0, 0.7, 1.5)), 0.5, list[float]()
    while every and now < shape.span:
        found.append(now)
        now += every * random.uniform(0.5, 1.5)
    return found


def _event(random: random_module.Random, fault: Fault, shape: Shape) -> Event:
    at, lasts = random.uniform(0.2, shape.span), random.choice((0.3, 1.0, 3.0, 6.0)) * random.uniform(0.5, 1.5)
    return Event(at, fault, lasts, random.random(), random.random(), random.choice((0.02, 0.1, 0.3)))


def _config(random: random_module.Random, least: int, most: int) -> dict[str, Any]:
    up = random.choice((0.3, 0.5))
    return {
        "optimization-target": random.choice(("sla", "sla", "load", "load", "latency", "throughput")),
        "ttft": random.choice((30.0, 100.0, 500.0)),
        "itl": random.choice((10.0, 50.0)),
        "adjustment-interval": random.choice((0.5, 1.0)),
        "metric-pulling-interval": 0.25,
        "window": 1.0,
        "hold": random.choice((0.5, 2.0)),
        "startup": 0.3,
        "min-endpoint": least,
        "max-gpu-budget": most,
        "decode-kv-scale-up-threshold": up,
        "decode-kv-scale-down-threshold": up / 2,
        "drain-timeout": random.choice((0.1, 1.0, 4.0)),
    }


def with_planners(plan: "Plan", scaling: ScalingPlan) -> "Plan":
    """The other faults of a run with planners, and theirs. Its workers belong to the planners."""
    left_out = (*OTHERS, *ROUGH) if plan.gentle else OTHERS
    events = [event for event in plan.events if event.fault not in left_out]
    events = sorted([*events, *scaling.events], key=lambda event: event.at)
    return replace(plan, events=tuple(events), workers=0, poison=(), prefill=0, kv_transfer="worker")
