#!/usr/bin/env python3
"""What a subscriber to the steps of the engine costs the worker: the real worker with a mocker.

step_metrics.py [--streams 64] [--seconds 10] [--speed 5.8]

Other processes read the answers, which do not end, and the steps. Microseconds per token that the worker spends in what
is done for the subscriber: at the end of each step, when it looks at its load, and when it writes the frame.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mocker.engine import Mocker
from dynamod.message import tokens
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.worker import Generate, Stops, Subscribe
from dynamod.runtime.dispatcher import EndpointDispatcher
from dynamod.transport.base import Sink
from dynamod.transport.unix import UnixServer, UnixTransport
from dynamod.worker.worker import Worker


class Mock(Mocker):
    """Without a model's files."""

    async def _read(self) -> tuple[ModelCard, int]:
        return ModelCard("m"), 32000


class Nothing(Sink):
    """Takes all that comes."""

    def token(self, offset: int, index: int) -> None:
        """See Sink."""

    def delta(self, delta: Any) -> None:
        """See Sink."""

    def lost(self, why: str) -> None:
        """See Sink."""


async def reader(path: str, streams: int) -> None:
    """Another process: so many answers; with 0 it is the subscriber."""
    tasks: list[Any] = []
    transport = UnixTransport(lambda work, _name: tasks.append(asyncio.create_task(work)))
    instance = Instance("n", "c", "e", 1, {"unix": path})
    for number in range(streams):
        request = Generate("r", "m", tokens.pack([number] * 64), Stops(max_tokens=1_000_000, ignore_eos=True))
        transport.open(instance, request, Nothing())
    if not streams:
        transport.open(instance, Subscribe("steps", steps=True), Nothing())
    await asyncio.to_thread(sys.stdin.read)


class Timed:
    """Counts the seconds that calls take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return call


async def measured(streams: int, seconds: float, speed: float) -> None:
    """Print the sums."""
    async with System() as system:
        endpoints, workers = EndpointDispatcher(), []

        def make() -> Worker:
            options = EngineOptions("m", arguments={"speedup_ratio": speed, "num_gpu_blocks": 5_000_000})
            workers.append(Worker(Mock, options, lambda _card: None, lambda: None))
            return workers[-1]

        ref = system.start("worker", make, restart="temporary")
        await system.ready(ref, timeout=10)
        endpoints.add("n.c.e", ref)
        with tempfile.TemporaryDirectory() as folder:
            server = UnixServer(f"{folder}/s", endpoints.receive)
            await server.start()
            words = [sys.executable, __file__, "--reader", server.path, "--streams"]
            children = [subprocess.Popen([*words, str(count)], stdin=subprocess.PIPE) for count in (streams, 0)]
            engine, steps = workers[-1]._engine, workers[-1]._subscriptions._steps
            while engine.tokens < 100 * streams or not steps:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            each, look, write = Timed(), Timed(), Timed()
            engine.stepped, steps.flush = each(engine.stepped), look(steps.flush)
            outbox = steps._subscribers[0]._outbox
            outbox.flush = write(outbox.flush)
            before, begun, used = (engine.tokens, engine.statistics().steps), time.perf_counter(), time.process_time()
            await asyncio.sleep(seconds)
            took, used = time.perf_counter() - begun, time.process_time() - used
            made, stepped = engine.tokens - before[0], engine.statistics().steps - before[1]
            for child in children:
                child.kill()
                child.wait()
            await server.close()
    us = [one.seconds / made * 1e6 for one in (each, look, write)]
    print(
        f"{streams} streams, steps of {took / stepped * 1000:.1f} ms, {used / made * 1e6:.2f} us of CPU per token: ",
        end="",
    )
    print(f"{sum(us):.3f} us for the subscriber (steps {us[0]:.3f}, looks {us[1]:.3f}, frames {us[2]:.3f})")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=5.8, help="as many times faster than a real engine")
    parser.add_argument("--reader", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    uvloop.install()
    if given.reader:
        asyncio.run(reader(given.reader, given.streams))
    else:
        asyncio.run(measured(given.streams, given.seconds, given.speed))


if __name__ == "__main__":
    main()
