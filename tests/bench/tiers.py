#!/usr/bin/env python3
"""What KV tiers of llama.cpp are worth, and what they cost where nothing repeats.

tiers.py [--model FILE] [--tokens 1500] [--rounds 9] [--unique 12]

First the time to the first token of one prompt whose blocks are in the device, in memory of the host, in files (read
anew, but from the kernel's page cache), and nowhere. Then unique prompts, in turn without tiers and with both: CPU time
of the process per token of prompts and answers, paired, and the median of the ratios. One process with two engines,
whose steps never run at the same time.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from dynamod import sample
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta, Failed, Tokens
from dynamod.message.worker import Generate, Sampling, Stops
from dynamod.transport.base import Sink
from dynamod.transport.local import LocalTransport

INSTANCE = Instance("bench", "worker", "generate", 1, {})
ANSWER = 16


class Answer(Sink):
    """The time of its first token, and its end."""

    def __init__(self) -> None:
        self.first = 0.0
        self.done = asyncio.Event()

    def delta(self, delta: Delta) -> None:
        if isinstance(delta, Failed):
            raise SystemExit(f"a request failed: {delta.message}")
        if isinstance(delta, Tokens):
            self.first = self.first or time.perf_counter()
        if getattr(delta, "finish", None) is not None:
            self.done.set()

    def lost(self, why: str) -> None:
        raise SystemExit(why)


async def ask(engine: LlamaCpp, ids: list[int], answer: int = ANSWER) -> float:
    """Milliseconds to the first token."""
    stops, sampling = Stops(max_tokens=answer, ignore_eos=True), Sampling(temperature=0.0)
    sink, began = Answer(), time.perf_counter()
    transport = LocalTransport(lambda _endpoint, request, reply: engine.submit(request, reply))  # type: ignore[arg-type]
    transport.open(INSTANCE, Generate("r", "m", tokens.pack(ids), stops, sampling), sink)
    await sink.done.wait()
    return (sink.first - began) * 1000


async def start(path: Path, spawned: list[Any], **arguments: Any) -> LlamaCpp:
    def spawn(work: Any, name: str) -> None:
        spawned.append(asyncio.get_running_loop().create_task(work, name=name))

    engine = LlamaCpp(EngineOptions("m", path, arguments=arguments), spawn)
    await engine.start()
    return engine


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(5, 1000), k=length)


async def settle(engine: LlamaCpp) -> None:
    """Until all copies are made."""
    before = None
    while before != (before := engine.statistics()):  # noqa: ASYNC110
        await asyncio.sleep(0.2)


async def evict(engine: LlamaCpp, blocks: int, seed: int) -> None:
    length = blocks * engine.block_size - 24
    await ask(engine, prompt(seed, length), 1)


async def worth(path: Path, folder: str, length: int, rounds: int, spawned: list[Any]) -> None:
    blocks = length // 16 + 10
    common = {"num_blocks": blocks, "max_num_seqs": 4, "kv_offload_after": 1, "step_seconds": 60.0}
    tiers = {
        "device": {},
        "host": {"kv_host_gb": 1.0},
        "files": {"kv_disk_gb": 1.0, "kv_disk_path": folder},
        "nowhere": {},
    }
    for name, more in tiers.items():
        engine = await start(path, spawned, **common, **more)
        times = []
        for number in range(rounds + 1):
            await ask(engine, prompt(1, length), 2)
            await settle(engine)
            if name != "device":
                await evict(engine, blocks, 100 + number)
                await settle(engine)
            times.append(await ask(engine, prompt(1, length), 2))
        imported = engine.statistics().imported_blocks
        print(
            f"{name}: {statistics.median(times[1:]):.1f} ms to the first token of {length}, {imported} blocks imported"
        )
        await engine.close()


async def cost(path: Path, folder: str, length: int, rounds: int, unique: int, spawned: list[Any]) -> None:
    tiers = {"kv_host_gb": 1.0, "kv_disk_gb": 1.0, "kv_disk_path": folder}
    engines = [await start(path, spawned, **more) for more in ({}, tiers)]
    seeds, ratios, off = iter(range(1000, 10**9)), [], []
    for number in range(rounds + 1):
        used = [0.0, 0.0]
        for place in (0, 1) if number % 2 else (1, 0):
            begin = time.process_time()
            for _ in range(unique):
                await ask(engines[place], prompt(next(seeds), length))
            used[place] = (time.process_time() - begin) / (unique * (length + ANSWER)) * 1e6
        if number:  # the first warms up
            ratios.append(used[1] / used[0])
            off.append(used[0])
    middle, least, most = (100 * (value - 1) for value in (statistics.median(ratios), min(ratios), max(ratios)))
    print(f"unique prompts of {length}: {statistics.median(off):.1f} us of CPU per token without tiers")
    print(f"with tiers {middle:+.1f} % (median of {len(ratios)} pairs, {least:+.1f} to {most:+.1f} %)")
    for engine in engines:
        await engine.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(sample.path("sample.gguf")))
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--unique", type=int, default=12, help="prompts of a round")
    given = parser.parse_args()
    spawned: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        await worth(given.model, folder, given.tokens, given.rounds, spawned)
        await cost(given.model, folder, 300, given.rounds, given.unique, spawned)
    for task in spawned:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
