#!/usr/bin/env python3
"""CPU of a planner's tick, and of what workers tell it between two ticks.

planner_tick.py [--workers 100] [--requests 50] [--steps 10] [--ticks 200]

Each worker tells of so many requests and steps in each tick. The tick decides, reconciles and keeps its record.
"""

import argparse
import random
import time

from dynamod.features.planner.pool import PlannedPool
from dynamod.features.planner.settings import PlannerSettings
from dynamod.features.planner.worker_view import WorkerView
from dynamod.message.kv_events import ForwardPass, Load, QueuedRequests, RequestStarted, ScheduledRequests, pack, unpack
from dynamod.message.pools import Pool, Replica


def told(draw: random.Random, requests: int, steps: int) -> bytes:
    """What a worker publishes in one interval."""
    started = [RequestStarted(number, (), draw.randrange(100, 4000)) for number in range(requests)]
    passes = []
    for number in range(steps):
        tokens, context = draw.choice((0, 0, 512, 2048)), draw.randrange(1000, 200_000)
        seconds = 0.005 + 1e-5 * tokens + 2e-8 * context
        done = ScheduledRequests(1, tokens, 0.0, 0, 8, context, 0.0)
        passes.append(ForwardPass(number, seconds, done, QueuedRequests(1, 500, 0.0, 0, 0, 0.0)))
    return pack((*started, *passes, Load(8, 1, 500, 4000, 0.5)))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ticks", type=int, default=200)
    a = parser.parse_args()
    draw = random.Random(1)
    pool = PlannedPool("Worker", "decode", PlannerSettings(max_gpu_budget=256))
    pool.workers = {lease: WorkerView(16) for lease in range(1, a.workers + 1)}
    replicas = tuple(Replica(replica=lease, state="Ready", lease=lease) for lease in pool.workers)
    items = [told(draw, a.requests, a.steps) for _ in range(20)]
    taking = deciding = 0.0
    for number in range(a.ticks):
        begun = time.process_time()
        for worker in pool.workers.values():
            worker.take(unpack(draw.choice(items)), False)
        told_at = time.process_time()
        pool.propose(5.0 * number, {"here": Pool(replicas=replicas)})
        pool.decide(0.0, 256)
        taking, deciding = taking + told_at - begun, deciding + time.process_time() - told_at
    print(f"{a.workers} workers, {a.requests} requests and {a.steps} steps of each per tick:")
    print(f"{1000 * taking / a.ticks:.1f} ms to take what they tell, {1000 * deciding / a.ticks:.1f} ms to decide")


if __name__ == "__main__":
    main()
