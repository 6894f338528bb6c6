#!/usr/bin/env python3
"""Goodput per worker hour of planners in one replay: ours, fixed numbers of workers, and another system's controller.

planner.py [TRACE.jsonl] [--peer "PYTHON planner_peer.py"] [--startups 0 30 120 300] [--workers 2] [--most 8]
           [--plot FILE]

The trace is Mooncake's at speeds 1, 2 and 4, and two made days follow. A request is good when its first token comes
within 2 s and the others within 50 ms on average. The peer, a program that speaks the lines of
`dynamod.features.replay.peer`, plays with each of its targets; its best one is that with most good requests per worker
hour.
"""

import argparse
from pathlib import Path

from disagg_replay import BLOCK, KV, day

from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.features.planner.settings import PlannerSettings
from dynamod.features.replay.picture import draw
from dynamod.features.replay.planned import PEER_TARGETS, Game, Planned
from dynamod.features.replay.trace import Arrival, faster, read_trace

COLUMNS = ("workload", "start-up", "ours: good per worker hour", "missed", "peer", "missed", "best fixed", "missed")


def workloads(trace: Path | None) -> dict[str, list[Arrival]]:
    """Arrivals by name."""
    recorded = read_trace(trace, BLOCK) if trace is not None else []
    found = {f"Mooncake x{speed}": faster(recorded, speed) for speed in (1, 2, 4) if recorded}
    return {**found, "day of chats": day(1, 20, 60.0, 1500, 400), "day of documents": day(2, 20, 20.0, 9000, 150)}


def cells(found: Planned | None) -> tuple[str, str]:
    """Two columns of the table."""
    return (f"{found.goodput:.0f} ({found.planner})", str(found.missed)) if found is not None else ("", "")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--peer")
    parser.add_argument("--startups", type=float, nargs="*", default=[0, 30, 120, 300])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--plot", metavar="FILE", help="draw the day of chats with workers that take 30 s to start")
    a = parser.parse_args()
    machine = SchedulerSettings(block_size=BLOCK, num_gpu_blocks=2000, max_num_seqs=256, max_num_batched_tokens=8192)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, arrivals in workloads(a.trace).items():
        game = Game(arrivals, machine, TIMINGS["later"], KV, PlannerSettings(max_gpu_budget=a.most), a.workers)
        fixed = [game.play(f"static:{count}", 0.0) for count in range(1, a.most + 1)]
        for startup in a.startups:
            ours = game.play("sla", startup)
            if a.plot and (name, startup) == ("day of chats", 30.0):
                Path(a.plot).write_text(
                    draw([ours], f"{name}: {len(arrivals)} requests in 20 minutes"), encoding="utf-8"
                )
            peers = [game.play(f"command:{target}:{a.peer}", startup) for target in PEER_TARGETS] if a.peer else []
            peers = [one._replace(planner=one.planner.split(":")[1]) for one in peers]
            best = max(peers, key=lambda one: one.goodput, default=None)
            row = (*cells(ours), *cells(best), *cells(max(fixed, key=lambda one: one.goodput)))
            print("| " + " | ".join([name, f"{startup:g} s", *row]) + " |", flush=True)


if __name__ == "__main__":
    main()
