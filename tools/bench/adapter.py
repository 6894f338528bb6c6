#!/usr/bin/env python3
"""What the worker adds to vLLM's and SGLang's own loops per token: the real adapters, the engines' steps mocked.

adapter.py [--streams 64] [--steps 400] [--repeat 7]

A mock hands each stream an output with one token per step. First each stream is a task that only reads its outputs, as
a plain user of `AsyncLLM` or `Engine` does; then our engine reads them, and what it sends leaves in frames of a real
`Outbox`; then the same with KV events: a block of 16 tokens is announced over ZMQ when a stream has filled it, and goes
on to one subscriber. The differences are what dynamod adds in the worker process. CPU time, microseconds per token.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import msgspec
import uvloop
import zmq

from dynamod.engine.base import EngineOptions
from dynamod.engine.sglang.engine import SgLang
from dynamod.engine.vllm.engine import Vllm
from dynamod.message import tokens
from dynamod.message.worker import Generate, Sampling, Stops
from dynamod.transport.outbox import Outbox
from dynamod.worker.events import EventPublisher

BLOCK = 16
SUBSCRIBED = 30
"""Seconds until the events have a reader, at most."""


class Steps:
    """Outputs by a queue per request, as both engines have them, and the events that come with a step."""

    def __init__(self, steps: int, output: Callable[[int, bool], Any], publish: Callable[[int], None]) -> None:
        self._steps, self._output, self._publish = steps, output, publish
        self._queues: list[asyncio.Queue[Any]] = []

    async def outputs(self) -> AsyncIterator[Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._queues.append(queue)
        for _ in range(self._steps):
            try:
                yield queue.get_nowait()
            except asyncio.QueueEmpty:
                yield await queue.get()

    async def run(self, streams: int) -> None:
        """All steps, one turn of the loop and more behind each other."""
        while len(self._queues) < streams:  # noqa: ASYNC110 - tasks that have not begun
            await asyncio.sleep(0)
        for step in range(1, self._steps + 1):
            for queue in self._queues:
                queue.put_nowait(self._output(step, step == self._steps))
            self._publish(step)
            for _ in range(4):
                await asyncio.sleep(0)


def vllm_output(step: int, last: bool) -> Any:
    one = SimpleNamespace(token_ids=[step], finish_reason="length" if last else None, logprobs=None)
    return SimpleNamespace(outputs=[one], num_cached_tokens=0)


def vllm(spawn: Any, steps: Steps) -> Any:
    engine: Any = Vllm(EngineOptions("m"), spawn)
    engine._llm = SimpleNamespace(generate=lambda *_: steps.outputs())
    errors = {"refused": (ValueError,), "full": BlockingIOError, "dead": ConnectionError}
    engine._vllm = SimpleNamespace(params=SimpleNamespace, delta=None, prompt=list, **errors)
    return engine


def sglang_output(step: int, last: bool) -> Any:
    finish = {"type": "length"} if last else None
    return {"output_ids": [step], "meta_info": {"finish_reason": finish, "prompt_tokens": 3, "cached_tokens": 0}}


def sglang(spawn: Any, steps: Steps) -> Any:
    async def generate(**_: Any) -> Any:
        return steps.outputs()

    engine: Any = SgLang(EngineOptions("m"), spawn)
    engine._engine, engine._incremental = SimpleNamespace(async_generate=generate), True
    return engine


ENGINES = {"vLLM": (vllm, vllm_output), "SGLang": (sglang, sglang_output)}


def batches(streams: int, steps: int) -> list[bytes]:
    """For every step that fills blocks the message that an engine publishes."""
    found = []
    for block in range(steps // BLOCK):
        ids = list(range(block * BLOCK, (block + 1) * BLOCK))
        stored = [
            {
                "type": "BlockStored",
                "block_hashes": [number << 32 | block],
                "parent_block_hash": number << 32 | (block - 1) if block else None,
                "token_ids": [number, *ids[1:]],
                "block_size": BLOCK,
                "medium": "GPU",
            }
            for number in range(streams)
        ]
        found.append(msgspec.msgpack.encode([0.0, stored, 0]))
    return found


async def bare(name: str, streams: int, steps: int) -> float:
    """CPU seconds of reading the outputs alone."""
    mock = Steps(steps, ENGINES[name][1], lambda _step: None)

    async def read() -> None:
        async for _ in mock.outputs():
            pass

    tasks = [asyncio.create_task(read()) for _ in range(streams)]
    began = time.process_time()
    await mock.run(streams)
    await asyncio.gather(*tasks)
    return time.process_time() - began


async def adapted(name: str, streams: int, steps: int, *, events: bool) -> float:
    """CPU seconds of the engine and the frames."""
    make, output = ENGINES[name]
    tasks: dict[str, asyncio.Task[Any]] = {}

    def spawn(work: Any, task: str) -> asyncio.Task[Any]:
        tasks[task] = asyncio.create_task(work)
        return tasks[task]

    def write(_payload: bytes) -> None:
        frames[0] += 1
        outbox.credit(1)

    frames, outbox = [0], Outbox(write)
    messages = batches(streams, steps) if events else []
    with zmq.Context() as context, tempfile.TemporaryDirectory() as folder:
        socket = context.socket(zmq.XPUB)  # which tells of its subscribers
        socket.set_hwm(0)
        socket.bind(endpoint := f"ipc://{folder}/tcp-events:1")

        def publish(step: int) -> None:
            if events and step % BLOCK == 0:
                number = step // BLOCK - 1
                socket.send_multipart([b"kv", number.to_bytes(8, "big"), messages[number]])

        mock = Steps(steps, output, publish)
        engine = make(spawn, mock)
        engine.room, engine.vocabulary, engine.block_size = 1 << 20, 1 << 20, BLOCK
        if events:
            publisher = EventPublisher()
            publisher.subscribe(outbox.reply(streams), ())
            engine.publish = publisher.publish
            engine.serve_blocks(endpoint, None, 1)
            if not await asyncio.to_thread(socket.poll, SUBSCRIBED * 1000):
                raise SystemExit("the engine does not subscribe to the events")
        request = Generate("r", "m", tokens.pack([1, 2, 3]), Stops(max_tokens=steps), Sampling(temperature=0.0))
        for number in range(streams):
            engine.submit(msgspec.structs.replace(request, request_id=str(number)), outbox.reply(number))
        began = time.process_time()
        await mock.run(streams)
        await asyncio.gather(*(task for kind, task in tasks.items() if kind.startswith("request")))
        while engine.blocks is not None and len(engine.blocks.names) < streams * (steps // BLOCK):  # noqa: ASYNC110
            await asyncio.sleep(0)
        taken = time.process_time() - began
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        socket.close(linger=0)
    assert engine.counts.tokens == streams * steps
    assert frames[0] >= steps
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    streams, steps = given.streams, given.steps
    uvloop.install()
    for name in ENGINES:
        found: dict[str, list[float]] = {"alone": [], "adapter": [], "adapter and events": []}
        for _ in range(given.repeat):
            found["alone"].append(asyncio.run(bare(name, streams, steps)))
            found["adapter"].append(asyncio.run(adapted(name, streams, steps, events=False)))
            found["adapter and events"].append(asyncio.run(adapted(name, streams, steps, events=True)))
        cost = {kind: statistics.median(all_) / streams / steps * 1e6 for kind, all_ in found.items()}
        print(f"{name}, step mocked: {cost['alone']:.2f} us per token in a plain loop")
        for kind in ("adapter", "adapter and events"):
            print(f"  {kind}: {cost[kind]:.2f}, added: {cost[kind] - cost['alone']:.2f} us per token")


if __name__ == "__main__":
    main()
