#!/usr/bin/env python3
"""What prefill workers are worth: gaps between tokens of answers, and times to first tokens, while long prompts arrive.

disagg.py MODEL.gguf [--streams 8] [--words 465] [--seconds 40] [--busy 0.5] [--batch 64 128 256 512] [--repeat 3]

On two cores, llama.cpp with one thread per worker, the same load on each: one prefill and one decode worker, and two
aggregated workers with each `max_num_batched_tokens` of `--batch`, so that their best is among them. `--streams`
answers are read all the time, each begun anew when it has ended. Prompts of so many words, each of its own, arrive at
even intervals, such that a prefill worker would be busy for `--busy` of the time; their answers have one token.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from llama_servers import ROOT, Server
from load import WORDS

COLUMNS = ("servers", "ITL p50", "p99", "max (ms)", "TTFT of prompts p50", "p99 (ms)", "tokens/s", "client CPU")


@dataclass
class Result:
    """Seconds: gaps between tokens, times to the first token of the long prompts. `client`: CPU of the reader."""

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    tokens: int = 0
    client: float = 0.0


def text(words: int) -> str:
    """A prompt that shares no prefix with another."""
    return " ".join(random.choice(WORDS) for _ in range(words))


async def ask(port: int, prompt: str | list[int], tokens: int, gaps: list[float] | None = None) -> tuple[float, int]:
    """One streamed answer: seconds to its first token, and how many it had. Gaps behind the first are added."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
    data = json.dumps({**body, "nvext": {"ignore_eos": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nConnection: close\r\n"
    begun = last = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    first, count = 0.0, 0
    async for line in reader:
        if not line.startswith(b"data: {") or b'"text":' not in line:
            continue
        now = time.perf_counter()
        if not count:
            first = now - begun
        elif gaps is not None:
            gaps.append(now - last)
        last, count = now, count + 1
    writer.close()
    if not count:
        raise SystemExit("there was no answer")
    return first, count


async def measured(port: int, a: argparse.Namespace, interval: float) -> Result:
    """The load for so many seconds."""
    result, end = Result(), time.perf_counter() + a.seconds
    before = resource.getrusage(resource.RUSAGE_SELF)

    async def stream() -> None:
        while time.perf_counter() < end:
            _, count = await ask(port, text(12), 200, result.gaps)
            result.tokens += count

    async def prompt() -> None:
        first, _ = await ask(port, text(a.words), 1)
        result.first.append(first)

    streams = [asyncio.create_task(stream()) for _ in range(a.streams)]
    prompts = []
    while time.perf_counter() < end:
        await asyncio.sleep(interval)
        prompts.append(asyncio.create_task(prompt()))
    await asyncio.gather(*streams, *prompts)
    after = resource.getrusage(resource.RUSAGE_SELF)
    result.client = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / a.seconds
    return result


Start = Callable[[], Server]


def serving(a: argparse.Namespace, graph: str, workers: int, arguments: dict[str, int]) -> tuple[str, Start]:
    """A name, and what starts it."""
    given = json.dumps({"n_threads": 1, **arguments})
    common = [f"--Common.model={a.model.resolve()}", "--Worker.served_model_name=m", f"--Worker.engine_args={given}"]
    if graph == "disagg":
        own = ["--PrefillWorker.served_model_name=m", f"--PrefillWorker.engine_args={given}"]
        own += ["--Processor.max-local-prefill-length=64"]
    else:
        own = ["--Worker.engine=llamacpp", f"--Worker.ServiceArgs.workers={workers}"]
    name = "prefill + decode" if graph == "disagg" else f"2 aggregated, {arguments or 'default'}"

    def command(port: int, _folder: Path) -> Sequence[str]:
        start = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()", "serve"]
        return [*start, "-f", f"configs/{graph}.yaml", f"--Frontend.port={port}", *common, *own]

    return name, lambda: Server(name, command, 1)


def servers(a: argparse.Namespace) -> list[tuple[str, Start]]:
    """What is compared."""
    found = [serving(a, "disagg", 1, {}), serving(a, "agg", 2, {})]
    return [*found, *[serving(a, "agg", 2, {"max_num_batched_tokens": size}) for size in a.batch]]


def percentile(values: list[float], share: float) -> float:
    """In milliseconds."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--words", type=int, default=465)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--busy", type=float, default=0.5)
    parser.add_argument("--batch", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--repeat", type=int, default=3)
    a = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    found: dict[str, list[Result]] = {}
    interval = 0.0
    for turn in range(a.repeat):
        for name, start in servers(a):
            server = start()
            try:
                server.model()
                if not interval:  # by the prefill worker alone, without other load
                    alone = [asyncio.run(ask(server.port, text(a.words), 1))[0] for _ in range(8)]
                    interval = median(alone[2:]) / a.busy
                    print(f"a prompt takes {1000 * interval * a.busy:.0f} ms alone: one each {1000 * interval:.0f} ms")
                random.seed(turn)
                found.setdefault(name, []).append(asyncio.run(measured(server.port, a, interval)))
            finally:
                server.stop()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, results in found.items():
        gaps = [median(percentile(one.gaps, share) for one in results) for share in (0.5, 0.99, 1.0)]
        first = [median(percentile(one.first, share) for one in results) for share in (0.5, 0.99)]
        rate = median(one.tokens / a.seconds for one in results)
        cells = [f"{value:.1f}" for value in (*gaps, *first, rate)]
        print("| " + " | ".join([name, *cells, f"{median(one.client for one in results):.2f}"]) + " |")


if __name__ == "__main__":
    main()
