#!/usr/bin/env python3
"""Goodput of equal workers in virtual time: prompts always at prefill workers, never, and by the decision.

disagg_replay.py [TRACE.jsonl] [--workers 8] [--prefill 2] [--ttft 2000] [--gap 40] [--speeds 1 2 4]

The trace is Mooncake's, at these speeds; two made days follow, whose load rises and falls. A request is good when its
first token comes within `--ttft` milliseconds and the others within `--gap` on average. `never` has all workers answer.
"""

import argparse
import math
import random
from collections.abc import Callable
from pathlib import Path

from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.features.prefill.settings import PrefillSettings
from dynamod.features.replay.pools import PoolReplay
from dynamod.features.replay.report import percentile
from dynamod.features.replay.simulate import Outcome, Replay
from dynamod.features.replay.trace import Arrival, faster, read_trace
from dynamod.router.settings import RouterSettings

BLOCK = 512
TRANSFER = 128 * 1024 / 25e9 * 1000
"""Milliseconds for each token: 128 KiB of KV cache (a model of 8 billion parameters) at 25 GB/s."""
COLUMNS = ("workload", "decision", "good/s", "of best", "TTFT p50", "p99", "gap p50", "p99 (ms)", "remote")
LIMITS = PrefillSettings(max_local_prefill_length=1000, max_prefill_queue_size=2)
KV = RouterSettings("kv")


def day(seed: int, minutes: float, rate: float, prompt: float, answer: float) -> list[Arrival]:
    """A day in so many minutes: at night a tenth of the noon's `rate` per second. Lengths: exponential, in tokens."""
    draw, arrivals, now, names = random.Random(seed), list[Arrival](), 0.0, iter(range(1, 1 << 60))
    systems = [tuple(next(names) for _ in range(2)) for _ in range(8)]
    while now < minutes * 60:
        now += draw.expovariate(rate)
        if draw.random() < 0.55 - 0.45 * math.cos(2 * math.pi * now / (minutes * 60)):
            length = 2 * BLOCK + 1 + min(30_000, int(draw.expovariate(1 / prompt)))
            own = tuple(next(names) for _ in range(length // BLOCK - 2))
            output = 1 + int(draw.expovariate(1 / answer))
            arrivals.append(Arrival(now * 1000, length, output, draw.choice(systems) + own))
    return arrivals


def workloads(a: argparse.Namespace) -> dict[str, list[Arrival]]:
    """Arrivals by name."""
    found: dict[str, list[Arrival]] = {}
    if a.trace is not None:
        recorded = read_trace(a.trace, BLOCK)
        found |= {f"Mooncake x{speed:g}": faster(recorded, speed) for speed in a.speeds}
    found["day of chats"] = day(1, 5, 60.0, 1500, 400)
    found["day of documents"] = day(2, 5, 20.0, 9000, 150)
    return found


def played(a: argparse.Namespace, arrivals: list[Arrival]) -> dict[str, tuple[Outcome, float]]:
    """Outcome and share of prompts that were computed remotely, by decision."""
    machine = SchedulerSettings(
        block_size=BLOCK, num_gpu_blocks=a.blocks, max_num_seqs=256, max_num_batched_tokens=8192
    )
    timing = TIMINGS["later"]

    def pools(prefill: PrefillSettings) -> tuple[Outcome, float]:
        replay = PoolReplay(a.workers - a.prefill, a.prefill, machine, timing, KV, disagg=prefill, transfer=TRANSFER)
        outcome = replay.run(arrivals)
        remote = sum(replay.reasons[reason] for reason in ("always", "long", "policy", "decode_busy", "sooner"))
        return outcome, remote / len(arrivals)

    decisions: dict[str, Callable[[], tuple[Outcome, float]]] = {
        "never": lambda: (Replay(a.workers, machine, timing, KV).run(arrivals), 0.0),
        "never, prefill workers idle": lambda: pools(PrefillSettings(remote_prefill=False)),
        "always": lambda: pools(PrefillSettings(conditional_disagg=False)),
        "limits of NVIDIA Dynamo": lambda: pools(
            PrefillSettings(max_local_prefill_length=1000, max_prefill_queue_size=2)
        ),
        "by request": lambda: pools(PrefillSettings()),
    }
    return {name: play() for name, play in decisions.items()}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--ttft", type=float, default=2000)
    parser.add_argument("--gap", type=float, default=40)
    parser.add_argument("--speeds", type=float, nargs="*", default=[1, 2, 4])
    a = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, arrivals in workloads(a).items():
        found = played(a, arrivals)
        best = max(found[one][0].goodput(a.ttft, a.gap) for one in ("never", "always"))
        for decision, (outcome, remote) in found.items():
            good, first = outcome.goodput(a.ttft, a.gap), sorted(one.ttft for one in outcome.served)
            gaps = sorted(one.gap for one in outcome.served)
            times = [percentile(values, share) for values in (first, gaps) for share in (0.5, 0.99)]
            cells = [f"{good:.3f}", f"{good / best:.3f}" if best else "", *(f"{one:.0f}" for one in times)]
            print("| " + " | ".join([name, decision, *cells, f"{remote:.2f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
