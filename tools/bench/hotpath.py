#!/usr/bin/env python3
"""Where each microsecond of a streamed token goes in the ingress process: the real objects, one layer after the other.

hotpath.py [--model FOLDER] [--streams 64] [--steps 400]

One frame per engine step with a token for each stream is taken by a real `Inbox`. Behind it stand first sinks that do
nothing, then flights, then the detokeniser, then the outlet with its frames, at last real TCP connections to another
process on the loopback interface. What a layer adds to the one before is its share. CPU time of this process.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Self

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

import msgspec  # noqa: E402
import uvloop  # noqa: E402

from dynamod.http.metrics import ModelMetrics  # noqa: E402
from dynamod.http.outlet import Outlet, Outlets  # noqa: E402
from dynamod.http.settings import FrontendSettings  # noqa: E402
from dynamod.ingress.api.chat import ChatCompletions  # noqa: E402
from dynamod.ingress.api.stream import StreamWriter  # noqa: E402
from dynamod.ingress.counts import MigrationCounts  # noqa: E402
from dynamod.message import tokens  # noqa: E402
from dynamod.message.discovery import Instance  # noqa: E402
from dynamod.message.ingress import Frame, Step  # noqa: E402
from dynamod.message.openai import ChatRequest, Message, StreamOptions  # noqa: E402
from dynamod.message.worker import Generate, Stops  # noqa: E402
from dynamod.migration.base import Choice  # noqa: E402
from dynamod.migration.request import InFlightRequest  # noqa: E402
from dynamod.preprocess.locate import locate  # noqa: E402
from dynamod.preprocess.output import Output  # noqa: E402
from dynamod.preprocess.source import open_source  # noqa: E402
from dynamod.preprocess.tokenizer import Tokenizer  # noqa: E402
from dynamod.transport.base import Sink  # noqa: E402
from dynamod.transport.inbox import Inbox  # noqa: E402

REQUEST = Generate("r", "m", tokens.pack([1, 2, 3]), Stops(ignore_eos=True))
PATH = "n.c.e"


class Nothing(Sink):
    """Takes tokens and leaves them."""

    def token(self, offset: int, index: int) -> None:
        """See Sink."""

    def delta(self, delta: Any) -> None:
        """See Sink."""

    def lost(self, why: str) -> None:
        """See Sink."""


class Silent:
    """An output that has no text, a listener that does not listen, an outlet that does not send."""

    finish: Any = None
    free = True
    completion_tokens = 0

    def token(self, index: int) -> str:
        return ""

    def push(self, ids: Any, engine_finish: str | None = None) -> str:
        return ""

    def text(self, index: int, text: str, count: int) -> None: ...

    def put(self, data: bytes) -> None: ...


class Around:
    """Transport, places and placement of a request in flight."""

    instance = Instance("n", "c", "e", 1, {})
    alone = shared = False
    leave: Any = None

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def open(self, instance: Instance, request: Any, sink: Any) -> "Around":
        self._inbox.open(PATH, request, sink)
        return self

    async def acquire(self, ask: Any) -> "Around":
        return self

    def available(self, tried: Any, received: int) -> bool:
        return False

    def prefill_completed(self) -> None: ...

    def cancel(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def inflight(inbox: Inbox, output: Any, sink: Any) -> None:
    """A request in flight."""
    around: Any = Around(inbox)
    loop = asyncio.get_running_loop()
    choice = Choice(REQUEST, output, sink, 0, exact=True, limit=3)
    made = InFlightRequest(choice, around, around, loop.time, MigrationCounts(), lambda _: None)
    tasks.append(loop.create_task(made.run()))


tasks: list[asyncio.Task[None]] = []


def begun(outlet: Any) -> StreamWriter:
    """A stream that has begun."""
    request = ChatRequest(
        model="bench", messages=[Message("user", "x")], stream=True, stream_options=StreamOptions(include_usage=True)
    )
    made = StreamWriter(ChatCompletions(), request, "0" * 36, time.perf_counter(), ModelMetrics(), FrontendSettings())
    made.started(1, 3, {})
    made.events.outlet = outlet
    choice = made.choices[0]
    choice.prefix, choice.direct = made._frames.prefix(0, first=False), True
    choice.last = time.perf_counter()
    return made


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--read", type=int, nargs=2, metavar=("PORT", "COUNT"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.read:
        read_all([socket.create_connection(("127.0.0.1", a.read[0])) for _ in range(a.read[1])])
        return
    tokenizer = Tokenizer.from_source(open_source(locate(a.model)))
    ids = [index for index in range(300, min(1300, tokenizer.vocab_size)) if tokenizer.decode([index]).isascii()]
    encoder = msgspec.msgpack.Encoder()
    streams = tokens.pack(list(range(1, a.streams + 1)))
    payloads = [
        encoder.encode(
            Frame(
                (
                    Step(
                        streams,
                        tokens.pack([step] * a.streams),
                        tokens.pack([ids[(step + n) % len(ids)] for n in range(a.streams)]),
                    ),
                )
            )
        )
        for step in range(a.steps)
    ]

    async def cost(fill: Callable[[Inbox], None]) -> float:
        """Microseconds of CPU per token, the best of five."""
        best = float("inf")
        for _ in range(5):
            inbox = Inbox(lambda _payload: None)
            fill(inbox)
            await asyncio.sleep(0)  # the requests open their streams
            since = time.process_time()
            for payload in payloads:
                inbox.frame(payload)
                await asyncio.sleep(0)
            best = min(best, (time.process_time() - since) / a.steps / a.streams * 1e6)
            if any(task.done() for task in tasks):
                raise SystemExit("an answer has ended before its last token")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks.clear()
        return best

    def output() -> Output:
        return Output(tokenizer, REQUEST.stops)

    layers: list[tuple[str, float]] = []
    for name, make in (
        ("frame: decode, find each stream's sink", lambda inbox: inbox.open(PATH, REQUEST, Nothing())),
        ("request: offset, clock, history for a migration", lambda inbox: inflight(inbox, Silent(), Silent())),
        ("output: limits, stop tokens, id to text", lambda inbox: inflight(inbox, output(), Silent())),
        ("response: counters, JSON of the text, frame", lambda inbox: inflight(inbox, output(), begun(Silent()))),
    ):
        layers.append((name, await cost(lambda inbox, make=make: [make(inbox) for _ in range(a.streams)])))  # type: ignore[misc]
    connections, reader = await connected(a.streams)
    outlets = Outlets()
    queue = iter([Outlet(connection, outlets, direct=True) for connection in connections * 5])
    layers.append(
        (
            "socket: one write to the kernel, TCP on the loopback",
            await cost(lambda inbox: [inflight(inbox, output(), begun(next(queue))) for _ in range(a.streams)]),  # type: ignore[func-returns-value]
        )
    )
    for connection in connections:
        connection.close()
    await asyncio.to_thread(reader.wait, 30)
    before = 0.0
    print("| what | us per token |\n|---|---|")
    for name, value in layers:
        print(f"| {name} | {value - before:.2f} |")
        before = value
    print(f"| together | {before:.2f} |")


async def connected(count: int) -> tuple[list[asyncio.WriteTransport], subprocess.Popen[bytes]]:
    """Transports to another process that reads all, and that process."""
    with socket.create_server(("127.0.0.1", 0), backlog=count) as server:
        server.settimeout(30)
        reader = subprocess.Popen([sys.executable, __file__, "--read", str(server.getsockname()[1]), str(count)])
        loop, found = asyncio.get_running_loop(), []
        for _ in range(count):
            sock, _ = await asyncio.to_thread(server.accept)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, sock)
            found.append(transport)
        return found, reader


def read_all(sockets: list[socket.socket]) -> None:
    """Until all are closed."""
    import select

    poll = select.poll()
    by_number = {sock.fileno(): sock for sock in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN)
    while by_number:
        for number, _ in poll.poll():
            if not by_number[number].recv(1 << 16):
                poll.unregister(number)
                by_number.pop(number).close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
