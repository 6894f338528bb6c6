#!/usr/bin/env python3
"""CPU time per token that the engine `openai` takes in a worker, at a server of its own that costs nothing here.

openai_engine.py [--streams 16] [--tokens 400] [--pace 10] [--repeat 3]

The server is another process: it sends a chunk to every stream each `--pace` milliseconds (0: as fast as it can). What
is measured is the process time of this process, in which the engine reads the streams and hands text to replies that
count it; the same number of steps with no stream open is taken off.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine
from typing import Any

import uvloop
from aiohttp import web

from dynamod.engine.base import EngineOptions
from dynamod.engine.openai.command import free_port
from dynamod.engine.openai.engine import OpenAI
from dynamod.message.worker import Chat
from dynamod.transport.base import Reply


class Counting:
    """Where replies put their deltas."""

    origin = None

    def __init__(self) -> None:
        self.streams: dict[int, Reply] = {}
        self.deltas = 0

    def add(self, delta: Any) -> None:
        self.deltas += 1

    def backlog(self, stream: int) -> int:
        return 0


def serve(port: int, pace: float) -> None:
    """The server: chunks as vLLM writes them."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def event(choice: dict[str, Any]) -> bytes:
        return (
            b"data: " + json.dumps({**head, "choices": [{"index": 0, "logprobs": None, **choice}]}).encode() + b"\n\n"
        )

    text = event({"delta": {"content": " word"}, "finish_reason": None})

    async def answer(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(tokens):
            await response.write(text)
            await asyncio.sleep(pace)
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n' % tokens
        await response.write(event({"delta": {}, "finish_reason": "length"}) + usage + b"data: [DONE]\n\n")
        return response

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/v1/models", models)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


async def measure(port: int, streams: int, tokens: int) -> float:
    """Microseconds of this process per token."""
    tasks: set[asyncio.Task[Any]] = set()

    def spawn(work: Any, _name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    engine = OpenAI(EngineOptions(model="m", arguments={"url": f"http://127.0.0.1:{port}/v1"}), spawn)
    await engine.start()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens}).encode()
    counting = Counting()
    replies = [Reply(counting, number) for number in range(streams)]
    began, wall = time.process_time(), time.monotonic()
    for number, reply in enumerate(replies):
        engine.submit(Chat(str(number), "m", "chat", body, tokens), reply)
    while not all(reply.ended for reply in replies):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    used, wall = time.process_time() - began, time.monotonic() - wall
    began = time.process_time()
    await asyncio.sleep(min(wall, 1.0))
    idle = (time.process_time() - began) / min(wall, 1.0) * wall
    await engine.close()
    for task in list(tasks):
        task.cancel()
    return (used - idle) / (streams * tokens) * 1e6


def run(measured: Coroutine[Any, Any, float]) -> float:
    """On the event loop that workers have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--pace", type=float, default=10.0, help="milliseconds between the chunks of a stream")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, arguments.pace / 1000)
    port = free_port()
    words = [sys.executable, __file__, "--serve", str(port), "--pace", str(arguments.pace)]
    with subprocess.Popen(words) as server:
        try:
            time.sleep(2)
            runs = [run(measure(port, arguments.streams, arguments.tokens)) for _ in range(arguments.repeat)]
        finally:
            server.terminate()
    shown = ", ".join(f"{one:.1f}" for one in runs)
    print(f"{statistics.median(runs):.1f} us of CPU per token ({shown})")
    return None


if __name__ == "__main__":
    main()
