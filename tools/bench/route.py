#!/usr/bin/env python3
"""Microseconds of a routing decision and of a changed instance, by policy and number of workers.

route.py [--workers 8,2000] [--seconds 0.05]

The caches are full, every worker answers four requests on average. The fastest of seven rounds counts.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Any

SIZE = 16


def best(work: Callable[[], object], seconds: float, rounds: int = 7) -> float:
    """Microseconds of the fastest round's mean. `seconds`: of a round."""
    found = []
    for _ in range(rounds):
        times, begun = 0, time.perf_counter()
        while not times or time.perf_counter() - begun < seconds:
            work()
            times += 1
        found.append((time.perf_counter() - begun) / times * 1e6)
    return min(found)


def cluster(mode: Any, workers: int, idle: bool, system: int) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """A router that knows all about its workers. `system`: blocks of a prompt that all workers have."""
    from dynamod.kvcache.hashes import chain
    from dynamod.message.discovery import Instance
    from dynamod.message.kv_events import Load, Snapshot
    from dynamod.router.router import Router, RouterSettings

    router = Router("m", SIZE, RouterSettings(mode), random.Random(0), time.monotonic, time.time)
    chance, shared = random.Random(1), list(range(system))
    for worker in range(1, workers + 1):
        blocks = tuple(chain([*shared, *range(worker * 1000, worker * 1000 + 200)]))
        router.state.apply(worker, (Snapshot(blocks, blocks), Load(0, 0, 0, len(blocks) + chance.randrange(20), 0.0)))
    for number in range(0 if idle else workers * 4):
        worker = 1 + chance.randrange(workers)
        blocks = tuple(chain([*shared, *range(worker * 1000, worker * 1000 + chance.randrange(60))]))
        router.state.active.start(number, worker, blocks, chance.randrange(500), 0.0)
    instances = tuple(Instance("n", "c", "e", worker, {}) for worker in range(1, workers + 1))
    return router, instances, tuple(chain([*shared, *range(3000, 3100)]))


def measure(mode: str, workers: int, seconds: float, *, idle: bool = False, system: int = 0) -> None:
    """One row."""
    from dynamod.message.kv_events import RequestStarted
    from dynamod.router.router import Prompt

    router, instances, blocks = cluster(mode, workers, idle, system)
    prompt = Prompt("r", len(blocks) * SIZE + 10, blocks if router.settings.scores else ())
    decide = best(lambda: router.decide(prompt, instances), seconds)
    numbers = iter(range(10**9))

    def change() -> None:
        number = next(numbers)
        for worker in range(1, 9):
            router.state.apply(worker, (RequestStarted(number % 50, (), number % 97),))
        router.decide(prompt, instances)

    changed = best(change, seconds)
    both = [instances, instances[1:]]
    come = best(lambda: router.decide(prompt, tuple(both[next(numbers) % 2])), seconds)
    what = f"{workers} workers, {mode}{', idle' if idle else ''}{f', {system} blocks shared' if system else ''}"
    print(f"{what}: {decide:.1f} us, behind 8 changed loads {changed:.1f} us, behind a changed set {come:.1f} us")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="8,2000", help="numbers of workers")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a round")
    a = parser.parse_args()
    from dynamod.router.policies import NAMES as MODES

    for workers in map(int, a.workers.split(",")):
        for mode in MODES:
            measure(mode, workers, a.seconds)
        measure("kv", workers, a.seconds, idle=True)
        measure("kv", workers, a.seconds, system=50)


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/tools/", 1)[0])
    main()
