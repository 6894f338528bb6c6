"""Workers with one engine each, and readers that collect what they answer."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.actor import Ref, System
from dynamod.engine.base import Engine, EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker
from dynamod.extension.installed import block_stores
from dynamod.message import tokens
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.ingress import Accepted, Delta, Failed, Items, Text, Tokens
from dynamod.message.kv_events import WorkerEvent, unpack
from dynamod.message.worker import Chat, Generate, Request, Sampling, Stops, Subscribe
from dynamod.runtime.dispatcher import EndpointDispatcher
from dynamod.transport.base import Sink
from dynamod.transport.local import LocalTransport
from dynamod.worker.statistics import WorkerStatistics
from dynamod.worker.worker import Worker

# The sample model is too small for several threads; waiting for each other they are ten times slower on a busy machine.
os.environ.setdefault("RAYON_NUM_THREADS", "1")

INSTANCE = Instance("dynamo", "backend", "generate", 1, {})


@dataclass
class Answer(Sink):
    """A sink. `times`: the loop's clock at each delta."""

    deltas: list[Delta] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    stream: Any = None

    def delta(self, delta: Delta) -> None:
        assert not self.done.is_set(), "nothing comes after the end"
        self.deltas.append(delta)
        self.times.append(asyncio.get_running_loop().time())
        if isinstance(delta, Failed) or getattr(delta, "finish", None) is not None:
            self.done.set()

    def lost(self, why: str) -> None:
        raise AssertionError(why)

    async def wait(self, seconds: float = 60.0) -> "Answer":
        async with asyncio.timeout(seconds):
            await self.done.wait()
        return self

    @property
    def texts(self) -> list[Text]:
        return [delta for delta in self.deltas if isinstance(delta, Text)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.texts)

    @property
    def ids(self) -> list[int]:
        return [index for delta in self.deltas if isinstance(delta, Tokens) for index in tokens.unpack(delta.ids)]

    @property
    def count(self) -> int:
        """Tokens the answer says it has."""
        return sum(delta.tokens for delta in self.texts)

    @property
    def accepted(self) -> bool:
        return any(isinstance(delta, Accepted) for delta in self.deltas)

    @property
    def error(self) -> Failed | None:
        last = self.deltas[-1] if self.deltas else None
        return last if isinstance(last, Failed) else None

    @property
    def finish(self) -> str | None:
        assert self.error is None, self.error
        return getattr(self.deltas[-1], "finish", None)

    @property
    def prompt_tokens(self) -> int | None:
        return self.texts[-1].prompt_tokens

    @property
    def news(self) -> list[tuple[WorkerEvent, ...]]:
        """The items of a feed."""
        return [unpack(data) for delta in self.deltas if isinstance(delta, Items) for data in delta.items]


class Mock(Mocker):
    """The mocker without a model's files: reading them takes a thread, which virtual time does not allow."""

    async def _read(self) -> tuple[ModelCard, int]:
        return ModelCard(self.options.name, context_length=self.options.context_length or 0), 32000


class House:
    """A worker behind a local post. `published` and `withdrawn` are what the registry would hear."""

    def __init__(self, system: System, make: Callable[[EngineOptions, Spawn], Engine], options: EngineOptions) -> None:
        self.system = system
        self.published: list[ModelCard] = []
        self.withdrawn = 0
        self.workers: list[Worker] = []
        self._endpoints = EndpointDispatcher()
        self._make, self._options = make, options
        self.transport = LocalTransport(self._endpoints.receive)

    def _worker(self) -> Worker:
        def withdraw() -> None:
            self.withdrawn += 1

        self.workers.append(Worker(self._make, self._options, self.published.append, withdraw))
        return self.workers[-1]

    async def start(self, name: str = "worker") -> "House":
        self.ref: Ref = self.system.start(name, self._worker, restart="temporary")
        await self.system.ready(self.ref, timeout=60)
        self._endpoints.add(INSTANCE.path, self.ref)
        return self

    @property
    def statistics(self) -> WorkerStatistics:
        return self.workers[-1].statistics()

    def stranger(self) -> LocalTransport:
        """Another ingress process, as the worker sees it."""
        return LocalTransport(self._endpoints.receive)

    def ask(self, request: Request, transport: LocalTransport | None = None) -> Answer:
        answer = Answer()
        answer.stream = (transport or self.transport).open(INSTANCE, request, answer)
        return answer

    def subscribe(self, transport: LocalTransport | None = None) -> Answer:
        return self.ask(Subscribe("feed"), transport)


def generate(ids: list[int], prior: list[int] | None = None, seed: int | None = None, **stops: Any) -> Generate:
    sampling = Sampling(seed=seed)
    return Generate("r", "m", tokens.pack(ids), Stops(**stops), sampling, prior_output=tokens.pack(prior or []))


async def mocker(system: System, context_length: int | None = None, **arguments: Any) -> House:
    """A worker with a mocker, by default with small blocks."""
    arguments = {"block_size": 4, "num_gpu_blocks": 64, "watermark": 0, **arguments}
    options = EngineOptions("m", context_length=context_length, arguments=arguments, stores=block_stores)
    return await House(system, Mock, options).start()


def chat(text: str = "", **body: Any) -> Chat:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **body}
    return _request("chat", body)


def completion(prompt: Any, **body: Any) -> Chat:
    return _request("completion", {"model": "m", "prompt": prompt, **body})


def _request(kind: Any, body: dict[str, Any]) -> Chat:
    stop = body.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    return Chat("r", "m", kind, json.dumps(body).encode(), body.get("max_tokens"), stops)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for what another thread brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture(scope="session")
def words() -> SimpleNamespace:
    """The helpers above, for test modules (which cannot import this file)."""
    return SimpleNamespace(
        House=House,
        Answer=Answer,
        Mock=Mock,
        instance=INSTANCE,
        generate=generate,
        mocker=mocker,
        chat=chat,
        completion=completion,
        until=until,
    )
