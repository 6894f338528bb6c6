#!/usr/bin/env python3
"""dynamod and NVIDIA Dynamo in turn, in one call: CPU, latency, memory, cold start, index, routing.

compare_dynamo.py --peer dynamo_peer.sh --venv VENV --model FOLDER [--trace TRACE.jsonl] [--repeat 3] [--out FILE.md]

`--peer` is a script with the verbs `start VENV PORT` (prints `frontend=PID mocker=PID`) and `stop VENV`; VENV holds the
peer. Both serve the same tokenizer over mocker workers. Ratios above 1 mean that dynamod needs less. Wall times depend
on the machine; CPU times of one call may be compared.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import cold_start  # noqa: E402
import index  # noqa: E402
from load import Result, Work, run  # noqa: E402
from streams import ROWS, Ours, Server  # noqa: E402


class Table:
    """Rows of measure, ours, peer, ratio, bar."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str, str]] = []

    def add(self, name: str, mine: float, theirs: float | None, unit: str, bar: float | None, digits: int = 2) -> None:
        """One row; `bar` is the most that ours may be."""
        other = f"{theirs:.{digits}f} {unit}" if theirs is not None else ""
        ratio = f"{theirs / mine:.2f}" if theirs is not None and mine else ""
        limit = "" if bar is None else f"{bar:g}{'' if mine <= bar else ' missed'}"
        self.rows.append((name, f"{mine:.{digits}f} {unit}", other, ratio, limit))
        print(" | ".join(self.rows[-1]), flush=True)

    def markdown(self) -> str:
        """As a table."""
        head = ("measure", "dynamod", "Dynamo", "ratio", "bar")
        lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * 5, *self.rows)]
        return "\n".join(lines) + "\n"


ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""For the peer: a package of our own has its names."""


class Peer:
    """The peer, by its script."""

    def __init__(self, script: str, venv: str, port: int) -> None:
        self._script, self._venv = script, venv
        begun = time.perf_counter()
        line = subprocess.run(
            ["bash", script, "start", venv, str(port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=ALONE,
        ).stdout
        found = re.search(r"frontend=(\d+) mocker=(\d+)", line)
        if found is None:
            raise SystemExit(f"the peer's script said {line!r}")
        self.server = Server(port, "bench", int(found[1]), int(found[2]))
        while not self._answers():
            time.sleep(0.01)
        self.cold = time.perf_counter() - begun

    def _answers(self) -> bool:
        body = {"model": "bench", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.server.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """End it."""
        subprocess.run(["bash", self._script, "stop", self._venv], timeout=30, check=False)


BARS = {
    "stream 10 words, 500 tokens": 7.5,
    "stream 400 words, 128 tokens": 9.0,
    "unary 10 words, 1 token": 0.25,
    "unary 4000 words, 1 token": 0.6,
}


SETTLED = 2.0
"""Seconds before the first measurement: ours loads a model's faster tokenizer a second after the model is served."""


def measured(server: Server, fields: dict[str, object], repeat: int) -> list[Result]:
    """Warm up, then run a row `repeat` times."""
    work = Work(model=server.model, **fields)  # type: ignore[arg-type]
    pids = [server.ingress, server.worker]
    asyncio.run(run(server.port, Work(server.model, 64, 16, work.words, min(work.tokens, 50), work.unary), pids))
    time.sleep(SETTLED)
    return [asyncio.run(run(server.port, work, pids)) for _ in range(repeat)]


def serving(table: Table, a: argparse.Namespace) -> None:
    """CPU, latency and memory of ingress and worker.

    Neither mocker has a delay, so that the frontends are what limits; ours then joins tokens that wait into one chunk.
    `each alone` is the same work at four times a real engine's pace, which keeps the ingress busy and gives each token
    a chunk of its own.
    """
    engine = {"block_size": 16, "num_gpu_blocks": 65536, "max_num_seqs": 512}
    settings = [f"--Worker.engine_args.{name}={value}" for name, value in engine.items()]
    peer = Peer(a.peer, a.venv, a.port)
    names = ("stream 10 words, 500 tokens", "stream 400 words, 128 tokens")
    theirs = {name: measured(peer.server, ROWS[name], a.repeat) for name in names}
    for speed, alone in ((0, ""), (4, ", each alone")):
        ours = Ours(a.model, 0, "mocker", [*settings, f"--Worker.engine_args.speedup_ratio={speed}"])
        try:
            for name in names:
                mine = measured(ours.server, ROWS[name], a.repeat)
                table.add(
                    f"ingress CPU, {name}{alone}",
                    median([one.us_per_token(ours.server.ingress) for one in mine]),
                    median([one.us_per_token(peer.server.ingress) for one in theirs[name]]),
                    "us/token",
                    BARS[name],
                )
                print(f"  (chunks per token: {chunks(mine):.2f} and {chunks(theirs[name]):.2f})")
                if name.startswith("stream 10"):
                    table.add(
                        f"mocker worker CPU per token{alone}",
                        median([one.us_per_token(ours.server.worker) for one in mine]),
                        median([one.us_per_token(peer.server.worker) for one in theirs[name]]),
                        "us",
                        5.0,
                    )
        finally:
            ours.stop()
    fast = Ours(a.model, 0, "mocker", [*settings, "--Worker.engine_args.speedup_ratio=0"])
    try:
        both = [measured(fast.server, ROWS[names[0]], a.repeat), theirs[names[0]]]
        waits = [median([one.ttft(0.5) for one in results]) for results in both]
        table.add("TTFT p50, 64 streams, 10 words", *waits, "ms", 15.0, 1)
        sizes = [float(sum(results[-1].rss.values())) for results in both]
        table.add("RSS of ingress and one mocker", *sizes, "MB", 160.0, 0)
        for name in ("unary 10 words, 1 token", "unary 4000 words, 1 token"):
            both = [measured(server, ROWS[name], a.repeat) for server in (fast.server, peer.server)]
            table.add(
                f"ingress CPU, {name}",
                median([one.ms_per_request(fast.server.ingress) for one in both[0]]),
                median([one.ms_per_request(peer.server.ingress) for one in both[1]]),
                "ms/request",
                BARS[name],
            )
    finally:
        fast.stop()
        peer.stop()


def chunks(results: list[Result]) -> float:
    """Streamed chunks per token."""
    return sum(one.chunks for one in results) / max(1, sum(one.tokens for one in results))


def starting(table: Table, a: argparse.Namespace) -> None:
    """Cold start to the first completion."""
    cold_start.ours("mocker", a.model)
    mine = [cold_start.ours("mocker", a.model).wall for _ in range(a.repeat)]
    theirs = []
    for _ in range(a.repeat):
        peer = Peer(a.peer, a.venv, a.port)
        theirs.append(peer.cold)
        peer.stop()
        time.sleep(1)
    table.add("cold start to first completion", median(mine), median(theirs), "s", 1.0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="script that starts and stops the peer")
    parser.add_argument("--venv", required=True, help="virtual environment of the peer")
    parser.add_argument("--model", required=True, help="folder with the tokenizer that the peer serves")
    parser.add_argument("--port", type=int, default=8123, help="for the peer")
    parser.add_argument("--trace", help="Mooncake trace, for the routing rows")
    parser.add_argument("--replay", help="script of the peer's own replay: TRACE WORKERS BLOCKS SPEEDUP")
    parser.add_argument("--parts", default="serving,starting,index,routing", help="what to compare")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", help="write the table as markdown")
    a = parser.parse_args()
    table = Table()
    python = str(Path(a.venv) / "bin/python")
    if "serving" in a.parts:
        serving(table, a)
    if "starting" in a.parts:
        starting(table, a)
    if "index" in a.parts:
        mine, theirs = index.ours(), index.peer(python)
        for name, bar in (("hash", 130.0), ("find", 35.0), ("store", 0.7)):
            table.add(index.ROWS[name], mine[name], theirs[name], "us", bar)
    if a.trace and "routing" in a.parts:
        routing(table, a, python)
    if a.out:
        Path(a.out).write_text(table.markdown())


CLUSTERS = ((8, 2000, 1, 0.53, 165.0), (8, 2000, 4, 0.50, 200.0), (4, 2000, 1, 0.36, 230.0), (8, 1000, 1, 0.37, 216.0))


def routing(table: Table, a: argparse.Namespace, python: str) -> None:
    """Replays of the trace, ours and the peer's own."""
    from dynamod.engine.mocker.arguments import SchedulerSettings
    from dynamod.engine.mocker.timing import TIMINGS
    from dynamod.features.replay.report import numbers
    from dynamod.features.replay.simulate import Replay
    from dynamod.features.replay.trace import faster, read_trace
    from dynamod.router.router import RouterSettings

    arrivals = read_trace(Path(a.trace), 512)
    for workers, blocks, speed, reuse, wait in CLUSTERS:
        machine = SchedulerSettings(block_size=512, num_gpu_blocks=blocks)
        result = numbers(Replay(workers, machine, TIMINGS["later"], RouterSettings("kv")).run(faster(arrivals, speed)))
        name = f"replay, {workers} workers of {blocks} blocks" + (f", arrivals x{speed}" if speed != 1 else "")
        other: tuple[float, float] | None = None
        if a.replay:
            command = [python, a.replay, a.trace, str(workers), str(blocks), str(speed)]
            text = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=ALONE).stdout
            found = re.search(r"kv_router\s+reuse=([\d.]+) ttft_ms mean=([\d.]+)", text)
            if found is not None:
                other = float(found[1]), float(found[2])
        mine, theirs = result["reuse"], f"{other[0]:.3f}" if other else ""
        met = "" if mine >= reuse else " missed"
        table.rows.append((f"{name}: reuse", f"{mine:.3f}", theirs, "", f"at least {reuse:g}{met}"))
        print(" | ".join(table.rows[-1]), flush=True)
        table.add(f"{name}: TTFT mean", result["ttft_ms"]["mean"], other[1] if other else None, "ms", wait, 1)


if __name__ == "__main__":
    main()
