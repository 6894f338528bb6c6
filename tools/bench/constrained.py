#!/usr/bin/env python3
"""CPU time of tokens that keep to a form beside that of tokens that do not, and the first token with a fresh schema.

constrained.py [--engine mocker|llamacpp] [--tokens 200] [--streams 4] [--repeat 5] [--properties 20]

Both kinds of answers are made in turn, in this process, by the same engine with the sample model. So their ratio means
something on a busy machine too; the microseconds do so only on an idle one. What the engine takes for a token by itself
is in both. A first token with a fresh schema has the check of the schema in its own process, the compiling for the
model, and the first step.
"""

import argparse
import asyncio
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dynamod import sample
from dynamod.engine.base import Engine, EngineOptions
from dynamod.engine.names import ENGINES
from dynamod.message import tokens
from dynamod.message.ingress import Tokens
from dynamod.message.worker import Generate, Grammar, Stops
from dynamod.structured.checks import GrammarChecks
from dynamod.transport.base import Reply

PROMPT = tokens.pack(range(10, 40))
ARGUMENTS: dict[str, dict[str, Any]] = {
    "mocker": {"speedup_ratio": 0, "num_gpu_blocks": 4000, "block_size": 16},
    "llamacpp": {},
}


class Counting:
    """Where replies put their deltas: counts tokens, and keeps when the first has come."""

    origin = None

    def __init__(self) -> None:
        self.streams: dict[int, Reply] = {}
        self.tokens, self.first = 0, 0.0

    def add(self, delta: Any) -> None:
        count = tokens.count(delta.ids) if isinstance(delta, Tokens) else 0
        self.tokens += count
        if count and not self.first:
            self.first = time.perf_counter()

    def backlog(self, stream: int) -> int:
        return 0


def schema(properties: int, fresh: int = 0) -> Grammar:
    """A list of objects with so many properties. `fresh`: another number is another schema."""
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", "b"]}]
    members = {f"member_{fresh}_{number}": kinds[number % len(kinds)] for number in range(properties)}
    item = {"type": "object", "properties": members, "required": [*members]}
    return Grammar("json", msgspec.json.encode({"type": "array", "items": item, "minItems": 100}).decode())


async def answers(engine: Engine[Any], grammar: Grammar | None, streams: int, limit: int) -> Counting:
    """Have some answers of `limit` tokens made; returns when they are over."""
    counting = Counting()
    replies = [Reply(counting, number) for number in range(streams)]
    for number, reply in enumerate(replies):
        stops = Stops(max_tokens=limit, ignore_eos=True)
        engine.submit(Generate(f"r{number}-{time.perf_counter_ns()}", "m", PROMPT, stops, grammar=grammar), reply)
    async with asyncio.timeout(300):
        while not all(reply.ended for reply in replies):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    return counting


async def cost(engine: Engine[Any], grammar: Grammar | None, streams: int, limit: int) -> float:
    """Microseconds of CPU time per token."""
    began = time.process_time()
    counting = await answers(engine, grammar, streams, limit)
    return (time.process_time() - began) / counting.tokens * 1e6


async def first_token(engine: Engine[Any], checks: GrammarChecks, grammar: Grammar | None) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    if grammar is not None:
        await checks.check("response_format", grammar)
        await engine.prepare(grammar)
    return ((await answers(engine, grammar, 1, 1)).first - began) * 1000


async def main(given: argparse.Namespace) -> None:
    """Print a line per measurement."""
    tasks: set[asyncio.Task[Any]] = set()

    def spawn(work: Any, _name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    module, _, name = ENGINES[given.engine].target.partition(":")
    make: Callable[..., Engine[Any]] = getattr(importlib.import_module(module), name)
    path = sample.path("sample.gguf" if given.engine == "llamacpp" else "sample")
    engine = make(EngineOptions("m", path, arguments=dict(ARGUMENTS[given.engine])), spawn)
    await engine.start()
    checks = GrammarChecks()
    try:
        one = schema(given.properties)
        await first_token(engine, checks, one)  # starts the process that checks, and loads the tokenizer
        free, held = [], []
        for _ in range(given.repeat):
            free.append(await cost(engine, None, given.streams, given.tokens))
            held.append(await cost(engine, one, given.streams, given.tokens))
        ratio = statistics.median([one / other for one, other in zip(held, free, strict=True)])
        free_cost, held_cost = statistics.median(free), statistics.median(held)
        print(f"CPU per token: {free_cost:.1f} us free, {held_cost:.1f} us by a form, {ratio:.1f} times as much")
        plain = [await first_token(engine, checks, None) for _ in range(given.repeat)]
        known = [await first_token(engine, checks, one) for _ in range(given.repeat)]
        fresh = [await first_token(engine, checks, schema(given.properties, 1 + n)) for n in range(given.repeat)]
        for what, runs in (("no form", plain), ("a known schema", known), ("a fresh schema", fresh)):
            print(f"first token with {what}: {statistics.median(runs):.1f} ms (most {max(runs):.1f})")
    finally:
        checks.close()
        await engine.close()
        for task in list(tasks):
            task.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(ARGUMENTS), default="mocker")
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--properties", type=int, default=20, help="of each object of the schema")
    asyncio.run(main(parser.parse_args()))
