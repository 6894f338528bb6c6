#!/usr/bin/env python3
"""What the worker adds to vLLM's own loop per token: the real adapter, vLLM's step mocked.

adapter.py [--streams 64] [--steps 400]

A mock of `AsyncLLM` hands each stream an output with one token per step. First each stream is a task that only reads
its outputs, as a plain user of `AsyncLLM` does; then the real engine `vllm` reads them, and what it sends leaves in
frames of a real `Outbox`. The difference is what dynamod adds in the worker process. CPU time, microseconds per token.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import uvloop

from dynamod.engine.base import EngineOptions
from dynamod.engine.vllm.engine import Vllm
from dynamod.message import tokens
from dynamod.message.worker import Generate, Sampling, Stops
from dynamod.transport.outbox import Outbox


class MockedAsyncLLM:
    """Outputs by a queue per request, as vLLM has them."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._queues: list[asyncio.Queue[Any]] = []

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._queues.append(queue)
        finished = False
        while not finished:
            try:
                output = queue.get_nowait()
            except asyncio.QueueEmpty:
                output = await queue.get()
            finished = output.outputs[0].finish_reason is not None
            yield output

    async def run(self, streams: int) -> None:
        """All steps, one turn of the loop and more behind each other."""
        while len(self._queues) < streams:  # noqa: ASYNC110 - tasks that have not begun
            await asyncio.sleep(0)
        for step in range(1, self._steps + 1):
            finish = "length" if step == self._steps else None
            for queue in self._queues:
                one = SimpleNamespace(token_ids=[step], finish_reason=finish, logprobs=None)
                queue.put_nowait(SimpleNamespace(outputs=[one]))
            for _ in range(4):
                await asyncio.sleep(0)


async def bare(streams: int, steps: int) -> float:
    """CPU seconds of reading the outputs alone."""
    llm = MockedAsyncLLM(steps)

    async def read(number: int) -> None:
        async for _ in llm.generate(None, None, str(number)):
            pass

    tasks = [asyncio.create_task(read(number)) for number in range(streams)]
    began = time.process_time()
    await llm.run(streams)
    await asyncio.gather(*tasks)
    return time.process_time() - began


async def adapted(streams: int, steps: int) -> float:
    """CPU seconds of the engine and the frames."""
    tasks: list[asyncio.Task[Any]] = []

    def spawn(work: Any, _name: str) -> asyncio.Task[Any]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    engine: Any = Vllm(EngineOptions("m"), spawn)
    engine._llm = llm = MockedAsyncLLM(steps)
    engine._params, engine._delta, engine._prompt = SimpleNamespace, None, list
    engine._refused, engine._full, engine._dead = (ValueError,), BlockingIOError, ConnectionError
    engine.room, engine.vocabulary = 1 << 20, 1 << 20
    frames = [0]

    def write(_payload: bytes) -> None:
        frames[0] += 1
        outbox.credit(1)

    outbox = Outbox(write)
    request = Generate("r", "m", tokens.pack([1, 2, 3]), Stops(max_tokens=steps), Sampling(temperature=0.0))
    for number in range(streams):
        engine.submit(request, outbox.reply(number))
    began = time.process_time()
    await llm.run(streams)
    await asyncio.gather(*tasks)
    taken = time.process_time() - began
    assert engine.tokens == streams * steps
    assert frames[0] >= steps
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    uvloop.install()
    found: dict[str, list[float]] = {"bare": [], "adapted": []}
    for _ in range(7):
        for name, run in (("bare", bare), ("adapted", adapted)):
            found[name].append(asyncio.run(run(given.streams, given.steps)))
    per_token = {name: statistics.median(all_) / given.streams / given.steps * 1e6 for name, all_ in found.items()}
    print(f"vLLM's loop alone (step mocked): {per_token['bare']:.2f} us per token")
    print(f"with the worker's adapter and frames: {per_token['adapted']:.2f} us per token")
    print(f"added: {per_token['adapted'] - per_token['bare']:.2f} us per token")


if __name__ == "__main__":
    main()
