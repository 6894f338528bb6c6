#!/usr/bin/env python3
"""Fixed work of one process: an ingress, a worker with the mocker and the client of both, without daemon and broker.

inside.py start                  import what a daemon, an ingress and a worker import
inside.py unary [--count 100]    chat requests with one token of answer, eight at a time
inside.py stream [--count 8]     chat requests with 128 tokens of answer each, eight at a time
inside.py decide [--count 100]   decisions of the router among 64 workers, prompts of 64 blocks
inside.py calls                  Python calls of one unary request, by file

`guard.py` counts the instructions of the first four.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import logging
import os
import random
import socket
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

AT_ONCE = 8
TOKENS = 128
"""Tokens of a streamed answer."""
WORKERS, BLOCKS = 64, 64
WARM_UP = 16
"""Requests before those that count."""


class Inside:
    """`async with Inside(folder) as inside`: everything of a node but its processes."""

    def __init__(self, folder: str) -> None:
        from dynamod.actor import System
        from dynamod.discovery.memory import MemoryRegistry

        self._folder, self.system, self.registry = folder, System(seed=1), MemoryRegistry(random.Random(1))

    async def __aenter__(self) -> "Inside":
        import msgspec

        from dynamod import sample
        from dynamod.actor import Actor
        from dynamod.discovery.keys import card_key, instance_key
        from dynamod.discovery.view import View
        from dynamod.engine.base import EngineOptions
        from dynamod.engine.mocker.engine import Mocker
        from dynamod.extension.settings import extended
        from dynamod.http.settings import FrontendSettings
        from dynamod.ingress.api.table import make_server
        from dynamod.ingress.processor import Processor, ProcessorBackend
        from dynamod.message.discovery import Instance, ModelCard
        from dynamod.runtime.dispatcher import EndpointDispatcher
        from dynamod.transport.unix import UnixServer, UnixTransport
        from dynamod.worker.worker import Worker

        await self.system.__aenter__()
        net = self.system.start("net", Actor)
        await self.system.ready(net, timeout=60)
        cell = self.system.cell(net)
        assert cell is not None
        self.transport = UnixTransport(cell.actor.context.task)
        view = View(self.registry)  # type: ignore[arg-type]
        endpoints = EndpointDispatcher()
        self._office = UnixServer(f"{self._folder}/worker.sock", endpoints.receive)
        await self._office.start()
        lease = self.registry.grant()
        instance = Instance("dynamo", "backend", "generate", lease, {"unix": self._office.path})

        def publish(card: ModelCard) -> None:
            self.registry.put(instance_key(instance), msgspec.json.encode(instance), lease)
            self.registry.put(card_key(instance), msgspec.json.encode(card), lease)

        options = EngineOptions("bench", sample.path("sample"), arguments={"speedup_ratio": 0})
        worker = Worker(Mocker, options, publish, lambda: self.registry.revoke(lease))
        ref = self.system.start("worker", lambda: worker, restart="temporary")
        await self.system.ready(ref, timeout=600)
        endpoints.add(instance.path, ref)
        processor = Processor(view, self.transport)
        ref = self.system.start("Processor", lambda: processor, restart="temporary")
        await self.system.ready(ref, timeout=600)
        backend = ProcessorBackend(ref, processor, view)
        while not backend.askable():
            await asyncio.sleep(0.01)
        self._http = make_server(extended(FrontendSettings)(host="127.0.0.1", port=0), backend)
        listener = socket.create_server(("127.0.0.1", 0))
        await self._http.start(listener)
        self.port = self._http.port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.stop(0)
        await self.transport.close()
        await self._office.close()
        await self.system.__aexit__(None, None, None)

    async def ask(self, count: int, tokens: int, stream: bool) -> None:
        """`count` requests, `AT_ONCE` at a time, over one connection each."""
        left = iter(range(count))
        body = json.dumps(
            {
                "model": "bench",
                "messages": [{"role": "user", "content": "one two three four five six seven eight nine ten"}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": stream,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        end = b"0\r\n\r\n" if stream else b"}"

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for _ in left:
                writer.write(head.encode() + body)
                answer = b""
                while not answer.endswith(end):
                    piece = await reader.read(1 << 16)
                    assert piece, answer
                    answer += piece
                assert answer.startswith(b"HTTP/1.1 200"), answer
            writer.close()

        await asyncio.gather(*(client() for _ in range(min(AT_ONCE, count))))


async def requests(count: int, tokens: int, stream: bool) -> None:
    """Start a node, warm it up, and ask."""
    with tempfile.TemporaryDirectory() as folder:
        async with Inside(folder) as inside:
            await inside.ask(WARM_UP, 1, stream=False)
            await inside.ask(count, tokens, stream)


async def calls() -> None:
    """Print the calls of one request after the warm-up, by file."""
    found: collections.Counter[str] = collections.Counter()
    counting = 20

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            for word in ("/site-packages/", "/lib/python3"):
                if word in name:
                    name = name.split(word)[1]
            found[f"{name.removeprefix(f'{ROOT}/')} {frame.f_code.co_qualname if DETAIL else ''}"] += 1

    with tempfile.TemporaryDirectory() as folder:
        async with Inside(folder) as inside:
            await inside.ask(WARM_UP, 1, stream=False)
            sys.setprofile(look)
            await inside.ask(counting, 1, stream=False)
            sys.setprofile(None)
    total = sum(found.values())
    for name, times in found.most_common():
        print(f"{times / counting:8.1f} {name}")
    print(f"{total / counting:8.1f} together")


DETAIL = False


def start() -> None:
    """What a daemon that a command starts, an ingress and a worker import."""
    from dynamod.cli import main  # noqa: F401
    from dynamod.runtime import host

    host.warm_up()


def decide(count: int) -> None:
    """Decisions of a KV router."""
    raise SystemExit("not yet")


def main() -> None:
    """Do the work of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["start", "unary", "stream", "decide", "calls"])
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--detail", action="store_true", help="of `calls`: by function")
    a = parser.parse_args()
    global DETAIL
    DETAIL = a.detail
    from dynamod.observe.logs import configure

    with open(os.devnull, "w") as nowhere:
        configure(component="bench/ingress.0", stream=nowhere)
        if a.work == "start":
            start()
            return
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if a.work == "unary":
                runner.run(requests(a.count or 100, 1, stream=False))
            elif a.work == "stream":
                runner.run(requests(a.count or 8, TOKENS, stream=True))
            elif a.work == "calls":
                runner.run(calls())
            else:
                decide(a.count or 100)
    logging.shutdown()
    contextlib.suppress()


if __name__ == "__main__":
    main()
