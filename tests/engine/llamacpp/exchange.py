"""Engines of llama.cpp in one process, between which blocks go; for tests that import llama_cpp."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamod import sample
from dynamod.engine.base import EngineOptions, answer_limit
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.engine.llamacpp.handoff import HeldRequest
from dynamod.extension.installed import block_stores
from dynamod.message import tokens
from dynamod.message.ingress import Logprobs
from dynamod.message.worker import Generate, Sampling, Stops
from dynamod.transport.local import LocalTransport

SIZE = 16
PATH = Path(sample.path("sample.gguf"))
LONG_STEPS = {"step_seconds": 60.0}
"""So that a prompt is one step whatever the machine does."""


def noise(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(5, 1000), k=length)


def asked(ids: list[int], answer: int = 12, prior: list[int] | None = None, **sampling: Any) -> Generate:
    sampling = {"temperature": 0.0, "logprobs": 3, **sampling}
    stops = Stops(max_tokens=answer + len(prior or []), ignore_eos=True)
    return Generate("r", "m", tokens.pack(ids), stops, Sampling(**sampling), prior_output=tokens.pack(prior or []))


def heard(answer: Any) -> tuple[list[int], list[Any]]:
    """Ids and logprobs."""
    assert answer.finish == "length"
    return answer.ids, [(delta.chosen, delta.top) for delta in answer.deltas if isinstance(delta, Logprobs)]


class Exported:
    """What an export puts."""

    def __init__(self, engine: LlamaCpp, request: Generate, stop_after: int = 10**6) -> None:
        self.blocks: list[tuple[int, bytes]] = []
        self.ends: list[Exception | None] = []
        self.ended = asyncio.Event()
        self._stop_after = stop_after
        self._news = asyncio.Event()
        self.cancel = engine.export(request, self._put, self._done)

    def _put(self, name: int, data: bytes) -> None:
        assert not self.ends
        self.blocks.append((name, data))
        self._news.set()
        if len(self.blocks) == self._stop_after:
            self.cancel()

    def _done(self, error: Exception | None) -> None:
        self.ends.append(error)
        self._news.set()
        self.ended.set()

    async def wait(self) -> list[tuple[int, bytes]]:
        async with asyncio.timeout(30):
            await self.ended.wait()
        assert self.ends == [None]
        return self.blocks

    async def comes(self, what: Callable[[], bool], within: float) -> None:
        """Wait for that, or for the end of the export. It may be in vain where the time is below a second."""
        try:
            async with asyncio.timeout(within):
                while not (what() or self.ends or len(self.blocks) >= self._stop_after):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            assert within < 1, "the export hangs"


class Engines:
    """Engines of one test, and what they are asked."""

    def __init__(self, words: Any) -> None:
        self._words = words
        self._tasks: list[asyncio.Task[None]] = []
        self.all: list[LlamaCpp] = []
        self.told: list[Any] = []  # by the last one

    async def start(self, path: Path = PATH, **arguments: Any) -> LlamaCpp:
        def spawn(work: Any, name: str) -> None:
            self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

        engine = LlamaCpp(EngineOptions("m", path, arguments={**LONG_STEPS, **arguments}, stores=block_stores), spawn)
        self.all.append(engine)
        self.told = []
        engine.publish = self.told.append
        await engine.start()
        return engine

    def open(self, receive: Callable[[Any, Any], object], request: Generate) -> Any:
        answer = self._words.Answer()
        transport = LocalTransport(lambda _endpoint, request, reply: receive(request, reply))
        answer.stream = transport.open(self._words.instance, request, answer)
        return answer

    def ask(self, engine: LlamaCpp, request: Generate) -> Any:
        return self.open(engine.submit, request)

    def hold(self, engine: LlamaCpp, request: Generate) -> tuple[HeldRequest, Any]:
        found: list[HeldRequest] = []

        def receive(request: Generate, reply: Any) -> None:
            found.append(engine.hold(request, reply, answer_limit(request, engine.room)))
            reply.on_cancel(found[0].cancel)

        answer = self.open(receive, request)
        return found[0], answer

    async def idle(self, engine: LlamaCpp) -> None:
        await self._words.until(lambda: engine.statistics().running == 0 and engine._steps.scheduler.idle)
        assert engine.statistics().active_blocks == 0

    async def close(self) -> None:
        for engine in self.all:
            await engine.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def put(held: HeldRequest, blocks: list[tuple[int, bytes]]) -> bool:
    """All blocks from the first that is missing on."""
    return all(held.put(*block) for block in blocks[held.first :])


async def three(engines: Engines, path: Path = PATH, **arguments: Any) -> tuple[LlamaCpp, LlamaCpp, LlamaCpp]:
    """One that answers alone, one that exports, one that imports."""
    alone = await engines.start(path, split_tail=True, **arguments)
    return alone, await engines.start(path, **arguments), await engines.start(path, **arguments)
