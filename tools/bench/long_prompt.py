#!/usr/bin/env python3
"""A prompt of 100,000 tokens: CPU time of the ingress, the worst gap of another stream, and the router's part.

long_prompt.py [--model FOLDER] [--tokens 100000] [--repeat 5] [--workers 2000] [--blocks 10000000]

First an ingress with the KV router and the echo engine: a new prompt, then the same prompt with another end. The gap of
the stream is that of one client alongside. Then the router alone: a decision about such a prompt among so many workers,
each of which has a part of it, and the memory of an index of so many blocks.
"""

import argparse
import json
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bodies import CHAT, Reader, send
from load import WORDS
from route import best
from streams import Ours

SIZE = 16


def body(words: int, number: int, end: str) -> bytes:
    """A chat whose prompt follows from its number and its end."""
    draw = random.Random(number)
    text = " ".join(draw.choice(WORDS) for _ in range(words))
    return (
        f'{{"model":"bench","max_tokens":1,"ignore_eos":true,"messages":[{{"role":"user","content":"{text} {end}"}}]}}'
    ).encode()


def longer(model: str, context: int) -> Path:
    """A copy of a model's folder, without weights, for prompts of so many tokens."""
    from dynamod.preprocess.locate import locate

    folder = Path(tempfile.mkdtemp()) / "model"
    shutil.copytree(locate(model), folder, ignore=shutil.ignore_patterns("*.safetensors", "*.gguf"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}))
    return folder


def words_for(model: Path, tokens: int) -> int:
    """How many words of the list make about so many tokens of a model's tokenizer."""
    from dynamod.preprocess.source import open_source
    from dynamod.preprocess.tokenizer import Tokenizer

    draw = random.Random(0)
    text = " ".join(draw.choice(WORDS) for _ in range(1000))
    return tokens * 1000 // len(Tokenizer.from_source(open_source(model)).encode(text))


def spent(pid: int) -> float:
    """CPU seconds of a process, with all its threads and finer than the ticks of its statistics."""
    return time.clock_gettime((~pid << 3) | 2)  # Linux: the number of the clock of another process


def ingress(model: str, tokens: int, repeat: int) -> None:
    """Requests to an ingress."""
    folder = longer(model, tokens * 2)
    words = words_for(folder, tokens)
    ours = Ours(str(folder), 5.0, "echo_core", ["--Processor.router_mode=kv"])
    port, pid = ours.server.port, ours.server.ingress
    found: dict[str, list[tuple[float, float]]] = {"a new prompt": [], "the same with another end": []}
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(send, (port, CHAT, body(10, 0, "")))
            for number in range(1, repeat + 1):
                for name, end in zip(found, ("one", "another"), strict=True):
                    data = body(words, number, end)
                    reader = Reader(port)
                    reader.start()
                    time.sleep(0.5)
                    idle = spent(pid)
                    time.sleep(1.0)
                    idle, begun, reader.gap = spent(pid) - idle, spent(pid), 0.0
                    status, said, took = pool.apply(send, (port, CHAT, data))
                    used, gap = spent(pid) - begun - idle * took, reader.gap
                    reader.over.set()
                    reader.join()
                    if status != 200:
                        raise SystemExit(f"{status}: {said}")
                    found[name].append((used, gap))
        for name, values in found.items():
            used, gap = (median(column) * 1000 for column in zip(*values, strict=True))
            said = f"{tokens:,} tokens ({words:,} words), {name}: ingress {used:.0f} ms"
            print(f"{said}, gap of another stream {gap:.0f} ms", flush=True)
    finally:
        ours.stop()
        shutil.rmtree(folder)


def decision(tokens: int, workers: int) -> None:
    """A decision of the router about such a prompt."""
    from dynamod.kvcache.hashes import chain
    from dynamod.message.discovery import Instance
    from dynamod.message.kv_events import Load, Snapshot
    from dynamod.router.router import Prompt, Router, RouterSettings

    router = Router("m", SIZE, RouterSettings("kv"), random.Random(0), time.monotonic, time.time)
    blocks, chance = tuple(chain(list(range(tokens // SIZE)))), random.Random(1)
    for worker in range(1, workers + 1):
        part = blocks[: chance.randrange(len(blocks) // 10)]
        router.state.apply(worker, (Snapshot(part, part), Load(0, 0, 0, len(part), 0.0)))
    instances = tuple(Instance("n", "c", "e", worker, {}) for worker in range(1, workers + 1))
    prompt = Prompt("r", tokens, blocks)
    cost = best(lambda: router.decide(prompt, instances), rounds=5, seconds=0.5)
    print(f"{workers:,} workers, {len(blocks):,} blocks: {cost / 1000:.2f} ms per decision", flush=True)


def index(blocks: int) -> None:
    """The memory of an index; to be called in a process of its own."""
    from dynamod.message.kv_events import Load, Snapshot
    from dynamod.router.router import Router, RouterSettings

    router = Router("m", SIZE, RouterSettings("kv"), random.Random(0), time.monotonic, time.time)
    before, each, draw = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 10_000, random.Random(2)
    for worker in range(1, blocks // each + 1):
        names = tuple(draw.getrandbits(64) for _ in range(each))
        router.state.apply(worker, (Snapshot(names, names), Load(0, 0, 0, each, 0.0)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{blocks:,} blocks of {blocks // each:,} workers: {grown:,.0f} MiB", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    a = parser.parse_args()
    if a.repeat:
        ingress(a.model, a.tokens, a.repeat)
    for work, arguments in ((decision, (a.tokens, a.workers)), (index, (a.blocks,))):
        process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
        process.start()
        process.join()


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/tools/", 1)[0])
    main()
