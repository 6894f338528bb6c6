#!/usr/bin/env python3
"""What KV tiers of llama.cpp are worth, and what they cost where nothing repeats.

tiers.py [--model FILE] [--tokens 1500] [--rounds 9] [--unique 12]

First the time to the first token of one prompt whose blocks are in the device, in memory of the host, in files (read
anew, but from the kernel's page cache), nowhere, and in the device and in the memory of another worker, from where they
come as between two processes. Then unique prompts, each one without tiers and with both, in turn: CPU time of the
process per token of prompts and answers, until all copies are made, and the median of the rounds' ratios. One process
with two engines, whose steps never run at the same time.
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

import msgspec

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from dynamod import sample
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.extension.installed import block_stores
from dynamod.features.prefill.handoff import HandoffEndpoint
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta, Failed, Items, Tokens
from dynamod.message.worker import Generate, Handoff, Prefill, Sampling, Stops
from dynamod.transport.base import Sink
from dynamod.transport.local import LocalTransport

INSTANCE = Instance("bench", "worker", "generate", 1, {})
ANSWER = 16


class Answer(Sink):
    """The time of its first token, and its end."""

    def __init__(self) -> None:
        self.first = 0.0
        self.done = asyncio.Event()
        self.handoff: asyncio.Future[Handoff] = asyncio.get_running_loop().create_future()

    def delta(self, delta: Delta) -> None:
        if isinstance(delta, Failed):
            raise SystemExit(f"a request failed: {delta.message}")
        if isinstance(delta, Items) and delta.items:
            self.handoff.set_result(msgspec.msgpack.decode(delta.items[0], type=Handoff))
        if isinstance(delta, Tokens):
            self.first = self.first or time.perf_counter()
        if getattr(delta, "finish", None) is not None:
            self.done.set()

    def lost(self, why: str) -> None:
        raise SystemExit(why)


def request_of(ids: list[int], answer: int) -> Generate:
    return Generate("r", "m", tokens.pack(ids), Stops(answer, ignore_eos=True), Sampling(temperature=0.0))


def begin(take: Any, request: Any) -> Answer:
    sink = Answer()
    LocalTransport(lambda _endpoint, request, reply: take(request, reply)).open(INSTANCE, request, sink)
    return sink


async def ask(engine: LlamaCpp, ids: list[int], answer: int = ANSWER) -> float:
    """Milliseconds to the first token."""
    began = time.perf_counter()
    sink = begin(engine.submit, request_of(ids, answer))
    await sink.done.wait()
    return (sink.first - began) * 1000


async def read(one: HandoffEndpoint, other: HandoffEndpoint, ids: list[int], folder: str) -> float:
    """Milliseconds to the first token of `other`, which reads the blocks that `one` has."""
    request, began = request_of(ids, 2), time.perf_counter()
    source = begin(
        lambda prefill, reply: one.export_stored(prefill.request, reply, "127.0.0.1", Path(folder)),
        Prefill(request, stored=True),
    )
    sink = begin(other.adopt, msgspec.structs.replace(request, handoff=await source.handoff))
    await sink.done.wait()
    await source.done.wait()
    return (sink.first - began) * 1000


async def start(path: Path, spawned: list[Any], **arguments: Any) -> LlamaCpp:
    def spawn(work: Any, name: str) -> asyncio.Task[Any]:
        spawned.append(asyncio.get_running_loop().create_task(work, name=name))
        return spawned[-1]

    engine = LlamaCpp(EngineOptions("m", path, arguments=arguments, stores=block_stores), spawn)
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


async def peers(path: Path, folder: str, length: int, rounds: int, spawned: list[Any]) -> None:
    blocks = length // 16 + 10
    common = {"num_blocks": blocks, "max_num_seqs": 4, "step_seconds": 60.0}
    for name, more in {"device": {}, "host": {"kv_host_gb": 1.0, "kv_offload_after": 1}}.items():
        engines = [await start(path, spawned, **common, **more), await start(path, spawned, **common)]
        one, other = [HandoffEndpoint(engine, engine.spawn) for engine in engines]
        times = []
        for number in range(rounds + 1):
            await ask(engines[0], prompt(1, length), 2)
            await settle(engines[0])
            for engine in engines[1:] if name == "device" else engines:
                await evict(engine, blocks, 100 + number)
            await settle(engines[0])
            times.append(await read(one, other, prompt(1, length), folder))
        imported = engines[1].statistics().imported_blocks
        middle = statistics.median(times[1:])
        print(f"{name} of another worker: {middle:.1f} ms to the first token of {length}, {imported} blocks imported")
        for endpoint, engine in zip((one, other), engines, strict=True):
            endpoint.close()
            await engine.close()


async def cost(path: Path, folder: str, length: int, rounds: int, unique: int, spawned: list[Any]) -> None:
    tiers = {"kv_host_gb": 1.0, "kv_disk_gb": 1.0, "kv_disk_path": folder}
    engines = [await start(path, spawned, **more) for more in ({}, tiers)]
    seeds, ratios, off = iter(range(1000, 10**9)), [], []
    for number in range(rounds + 1):
        used = [0.0, 0.0]
        for turn in range(unique):
            ids = prompt(next(seeds), length)
            for place in (0, 1) if turn % 2 else (1, 0):
                begin = time.process_time()
                await ask(engines[place], ids)
                await settle(engines[place])
                used[place] += time.process_time() - begin
        if number:  # the first warms up
            ratios.append(used[1] / used[0])
            off.append(used[0] / (unique * (length + ANSWER)) * 1e6)
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
        await peers(given.model, folder, given.tokens, given.rounds, spawned)
        await cost(given.model, folder, 300, given.rounds, given.unique, spawned)
    for task in spawned:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
