#!/usr/bin/env python3
"""Fixed work of one process: an ingress, a worker with the mocker and the client of both, without daemon and broker.

inside.py start             import what a daemon, an ingress and a worker import
inside.py unary             chat requests with one token of answer, eight at a time
inside.py audited           the same with a line of the audit log for each
inside.py stream            chat requests with 128 tokens of answer each, eight at a time
inside.py decide            decisions of the router's KV policy among 64 workers, prompts of 64 blocks
inside.py calls             Python calls of one unary request, by file; with --detail by function

Several works are done one after the other. Beneath `valgrind --tool=callgrind --instr-atstart=no` each work is counted
alone, without what comes before and after it: see `Callgrind`. `guard.py` compares these counts with stored ones.
"""

import argparse
import asyncio
import collections
import contextlib
import ctypes
import functools
import json
import logging
import mmap
import os
import platform
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

AT_ONCE = 8
TOKENS = 128
"""Tokens of a streamed answer."""
WORKERS, BLOCKS, BLOCK_TOKENS = 64, 64, 16
"""Of decisions: workers, blocks of a prompt, tokens of a block."""
OPEN = 4
"""Requests that each worker answers while decisions are made."""
WARM_UP = 16
"""Requests, and decisions, before those that count."""
COUNTS = {"unary": 40, "audited": 40, "stream": 8, "decide": 200, "calls": 20}
"""Requests or decisions that count."""
NEVER = 1e6
"""Seconds of timers, which would run more often the slower the machine is."""


class Callgrind:
    """Requests to the valgrind that runs this program. Without valgrind they do nothing.

    valgrind knows a request by a sequence of instructions that has no effect on a processor (valgrind.h): four
    rotations of a register by 128 bits in all, and an exchange of a register with itself.
    """

    MACHINE = "x86_64"
    """The machine whose instructions these are."""
    CODE = bytes.fromhex(
        "4889f8"  # mov rax, rdi: the request and its five arguments
        "4889f2"  # mov rdx, rsi: the answer without valgrind
        "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi, 3, 13, 61, 51
        "4887db"  # xchg rbx, rbx
        "4889d0"  # mov rax, rdx
        "c3"  # ret
    )
    ZERO, DUMP, START = (ord("C") << 24 | ord("T") << 16 | number for number in (1, 3, 4))

    def __init__(self) -> None:
        self._request: Any = None
        if platform.machine() == self.MACHINE:
            self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            self._memory.write(self.CODE)
            place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
            made = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.POINTER(ctypes.c_ulong * 6), ctypes.c_ulong)
            self._request = made(place)

    @contextlib.contextmanager
    def counted(self, work: str) -> Iterator[None]:
        """Count the instructions within the block, and write them to a file of callgrind, which names the work."""
        name = ctypes.create_string_buffer(work.encode())
        self._ask(self.START)
        self._ask(self.ZERO)
        yield
        self._ask(self.DUMP, ctypes.addressof(name))

    def _ask(self, number: int, argument: int = 0) -> None:
        if self._request is not None:
            self._request((ctypes.c_ulong * 6)(number, argument), 0)


callgrind = Callgrind()


async def until(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    while not true():  # noqa: ASYNC110 - nothing tells when it is
        await asyncio.sleep(0.01)


class Inside:
    """`async with Inside(folder) as inside`: everything of a node but its processes."""

    def __init__(self, folder: str, audit: bool = False) -> None:
        from dynamod.actor import System
        from dynamod.discovery.memory import MemoryRegistry

        self._settings: dict[str, Any] = {"audit_dir": f"{folder}/audit"} if audit else {}
        self._folder, self.system, self.registry = folder, System(seed=1), MemoryRegistry(random.Random(1))

    async def __aenter__(self) -> Self:
        from dynamod import sample
        from dynamod.actor import Actor
        from dynamod.discovery.view import View
        from dynamod.engine.base import EngineOptions
        from dynamod.engine.mocker.engine import Mocker
        from dynamod.extension.settings import extended
        from dynamod.http.settings import FrontendSettings
        from dynamod.ingress.api.table import make_server
        from dynamod.ingress.processor import Processor, ProcessorBackend
        from dynamod.message.discovery import Instance
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
        options = EngineOptions("bench", sample.path("sample"), arguments={"speedup_ratio": 0})
        publish = functools.partial(put, self.registry, instance, lease)
        worker = Worker(Mocker, options, publish, lambda: self.registry.revoke(lease))
        ref = self.system.start("worker", lambda: worker, restart="temporary")
        await self.system.ready(ref, timeout=600)
        endpoints.add(instance.path, ref)
        processor = Processor(view, self.transport)
        ref = self.system.start("Processor", lambda: processor, restart="temporary")
        await self.system.ready(ref, timeout=600)
        backend = ProcessorBackend(ref, processor, view)
        await until(backend.askable)
        # the requests that come before have another tokenizer
        await until(lambda: (model := processor.model("bench")) is not None and model.tokenizer.backend == "fastokens")
        self._http = make_server(extended(FrontendSettings)(host="127.0.0.1", port=0, **self._settings), backend)
        listener = socket.create_server(("127.0.0.1", 0))
        await self._http.start(listener, spawn=asyncio.create_task)
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
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        request = b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + body
        end = b"0\r\n\r\n" if stream else b"}"

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for _ in left:
                writer.write(request)
                answer = b""
                while not answer.endswith(end):
                    piece = await reader.read(1 << 16)
                    assert piece, answer
                    answer += piece
                assert answer.startswith(b"HTTP/1.1 200"), answer
            writer.close()

        await asyncio.gather(*(client() for _ in range(min(AT_ONCE, count))))


def put(registry: Any, instance: Any, lease: int, card: Any) -> None:
    """Publish an instance and its card."""
    import msgspec

    from dynamod.discovery.keys import card_key, instance_key

    registry.put(instance_key(instance), msgspec.json.encode(instance), lease)
    registry.put(card_key(instance), msgspec.json.encode(card), lease)


class Silent:
    """A transport, and a stream of it, that nothing ever comes from."""

    def open(self, *_: object) -> "Silent":
        return self

    def cancel(self) -> None:
        """Nothing has begun."""


async def requests(counts: dict[str, int], audit: bool = False) -> None:
    """Start a node, warm it up, and ask."""
    from dynamod.runtime.garbage import settle

    with tempfile.TemporaryDirectory() as folder:
        async with Inside(folder, audit) as inside:
            for work, count in counts.items():
                tokens, stream = (TOKENS, True) if work == "stream" else (1, False)
                await inside.ask(WARM_UP, tokens, stream)
                settle()
                with callgrind.counted(work):
                    await inside.ask(count, tokens, stream)


async def calls(count: int, detail: bool) -> None:
    """Print the calls of one request after the warm-up, by file."""
    found: collections.Counter[str] = collections.Counter()

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            for word in ("/site-packages/", f"/lib/python3.{sys.version_info.minor}/"):
                name = name.rpartition(word)[2]
            found[f"{name.removeprefix(f'{ROOT}/')} {frame.f_code.co_qualname if detail else ''}"] += 1

    with tempfile.TemporaryDirectory() as folder:
        async with Inside(folder) as inside:
            await inside.ask(WARM_UP, 1, stream=False)
            sys.setprofile(look)
            await inside.ask(count, 1, stream=False)
            sys.setprofile(None)
    total = sum(found.values())
    for name, times in found.most_common():
        print(f"{times / count:8.1f} {name}")
    print(f"{total / count:8.1f} together")


async def decide(count: int) -> None:
    """Place requests by a dispatcher among workers that answer others, and whose caches are full."""
    from dynamod.actor import System
    from dynamod.discovery.memory import MemoryRegistry
    from dynamod.discovery.view import View
    from dynamod.ingress.dispatcher import Dispatcher, ModelCounts, ModelServed
    from dynamod.kvcache.hashes import chain
    from dynamod.message.discovery import Instance, ModelCard
    from dynamod.message.kv_events import Load, Snapshot
    from dynamod.router.placement import Acquire, Placement
    from dynamod.router.router import Prompt, RouterSettings
    from dynamod.runtime.garbage import settle

    registry: Any = MemoryRegistry(random.Random(1))
    card, key, chance = ModelCard("bench", "tokens", kv_cache_block_size=BLOCK_TOKENS), ("bench", ""), random.Random(2)
    transport: Any = Silent()
    async with System(seed=1) as system:
        settings, counted = RouterSettings("kv"), collections.defaultdict[str, ModelCounts](ModelCounts)
        dispatcher = Dispatcher(View(registry), transport, settings, counted)
        ref = system.start("dispatcher", lambda: dispatcher, restart="temporary")
        await system.ready(ref, timeout=60)
        for number in range(1, WORKERS + 1):
            put(registry, Instance("n", "c", "e", number, {}), registry.grant(), card)
        ref.send_nowait(ModelServed(card))
        await until(lambda: dispatcher.router(key) is not None and len(dispatcher.serving(key).instances) == WORKERS)
        router = dispatcher.router(key)
        assert router is not None
        for number in range(1, WORKERS + 1):
            # a third of the blocks is a system prompt that all workers have
            blocks = tuple(chain([*range(BLOCKS // 3), *range(number * 1000, number * 1000 + 200)]))
            router.state.apply(number, (Snapshot(blocks, blocks), Load(0, 0, 0, len(blocks) + 20, 0.0)))

        def made(number: int) -> Acquire:
            """A prompt whose first blocks a worker has, with its own blocks behind them."""
            known = chance.randrange(1, WORKERS + 1) * 1000
            shared = [*range(BLOCKS // 3), *range(known, known + chance.randrange(BLOCKS))]
            own = range(10**6 + BLOCKS * number, 10**6 + BLOCKS * (number + 1))
            blocks = tuple(chain([*shared, *own][:BLOCKS]))
            return Acquire("bench", Prompt(f"r{number}", BLOCKS * BLOCK_TOKENS + 10, blocks))

        def place(message: Acquire) -> Placement:
            found = dispatcher.place(key, message)
            assert found is not None
            found.prefill_completed()
            return found

        begun = OPEN * WORKERS
        messages = [made(number) for number in range(begun + WARM_UP + count)]
        for message in messages[:begun]:
            place(message)  # never released
        for message in messages[begun : begun + WARM_UP]:
            place(message).release()
        settle()
        with callgrind.counted("decide"):
            for message in messages[begun + WARM_UP :]:
                place(message).release()


def start() -> None:
    """What a daemon that a command starts, an ingress and a worker import."""
    with callgrind.counted("start"):
        from dynamod.cli import main  # noqa: F401
        from dynamod.runtime import garbage, host

        garbage.pause()
        for kind in host.WARM_UP:
            host.warm_up(kind)


def still() -> None:
    """Stop what happens by time and not by work: ticks of timers, the thread that writes logs, texts of each second."""
    from dynamod.http import records
    from dynamod.ingress import dispatcher, processor
    from dynamod.observe import line_writer
    from dynamod.observe.backlog import Backlog
    from dynamod.transport import unix
    from dynamod.worker import subscriptions

    dispatcher.HOUSEKEEPING = processor.CLOCK = unix.LOOK = subscriptions.LOAD_INTERVAL = NEVER

    def put(backlog: Backlog[Any], target: Any, text: str, _size: int = 0) -> bool:
        backlog._write(target, text, 0)  # how often the thread wakes up depends on the machine
        return True

    Backlog.put = put  # type: ignore[assignment, method-assign]
    line_writer.GATHERED = 4096  # some ten lines, as in 50 ms of a server at work
    records.PAUSE_S, records.AT_ONCE = NEVER, 8  # as at 400 requests per second
    line_writer.LineWriter.__init__.__kwdefaults__ |= {"pause": NEVER}  # type: ignore[operator]
    time.time = lambda: 1.7e9


def main() -> None:
    """Do the work of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="+", choices=["start", *COUNTS])
    parser.add_argument("--count", type=int, help=f"requests or decisions; default: {COUNTS}")
    parser.add_argument("--detail", action="store_true", help="of `calls`: by function")
    a = parser.parse_args()
    counts = {work: a.count or COUNTS[work] for work in a.work if work in COUNTS}
    if "start" in a.work:
        start()
    from dynamod.observe.logs import configure

    with open(os.devnull, "w") as nowhere:
        configure(component="bench/ingress.0", stream=nowhere)
        if counts:
            import uvloop

            still()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                if asked := {work: count for work, count in counts.items() if work in ("unary", "stream")}:
                    runner.run(requests(asked))
                if "audited" in counts:
                    runner.run(requests({"audited": counts["audited"]}, audit=True))
                if "calls" in counts:
                    runner.run(calls(counts["calls"], a.detail))
                if "decide" in counts:
                    runner.run(decide(counts["decide"]))
        logging.shutdown()


if __name__ == "__main__":
    main()
