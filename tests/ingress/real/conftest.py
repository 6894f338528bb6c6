"""All of a node but its processes: a registry in memory, workers behind unix sockets, a processor, a frontend."""

import asyncio
import atexit
import contextlib
import functools
import itertools
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import openai
import pytest

from dynamod import sample
from dynamod.actor import Actor, System
from dynamod.discovery.keys import card_key, instance_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.engine.base import Engine, EngineOptions, EngineStatistics, Spawn
from dynamod.engine.echo import DELAY, EchoCore, EchoFull
from dynamod.extension.settings import extended
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.completions import Completions
from dynamod.ingress.api.table import make_server
from dynamod.ingress.base import Job, Logprob
from dynamod.ingress.processor import Processor, ProcessorBackend, ProcessorOptions, ProcessorPlace
from dynamod.message.discovery import Capabilities, Instance, ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.message.worker import Chat, Files, Generate, Request
from dynamod.runtime.dispatcher import EndpointDispatcher
from dynamod.structured.checks import Compiler, GrammarChecks
from dynamod.transport.base import Reply
from dynamod.transport.unix import UnixServer, UnixTransport
from dynamod.worker.worker import Worker
from tests.ports import listener


class Manual(Engine):
    """A text engine that says nothing by itself: the test answers."""

    name = "manual"
    serves = (Chat,)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.replies: list[Reply] = []
        self.requests: list[Generate | Chat] = []

    async def start(self) -> None: ...

    def card(self) -> ModelCard:
        return ModelCard(self.options.name, "text", engine=self.name, capabilities=Capabilities(logprobs=True))

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        self.requests.append(request)
        self.replies.append(reply)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics()


class Seen(EchoCore):
    """echo_core that keeps what it was asked, and says that there is chance in it, as models have."""

    capabilities = msgspec.structs.replace(EchoCore.capabilities, deterministic=False)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.requests: list[Generate] = []

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        assert isinstance(request, Generate)
        self.requests.append(request)
        super().submit(request, reply)


class Member:
    """A worker that lives: `actor`, its `engine`, and what stands in the registry for it. `asked`: for its files."""

    def __init__(
        self, instance: Instance, office: UnixServer, actor: Worker, context: EndpointDispatcher, asked: list[Reply]
    ) -> None:
        self.instance, self.office, self.actor, self.context = instance, office, actor, context
        self.asked = asked

    @property
    def engine(self) -> Any:
        return self.actor._engine

    @property
    def open(self) -> int:
        return self.actor.statistics().open


class _Net(Actor):
    """Owns the tasks of the post."""


class Lasting(Compiler):
    """A compiler of grammars that stays when the house that uses it is closed."""

    def close(self) -> None: ...


@functools.cache
def compiler() -> Compiler:
    """One compiler of grammars for all houses of this test process. tests/structured tests how compilers end."""
    made = Lasting()
    atexit.register(Compiler.close, made)
    return made


class House:
    """`async with House(folder) as house:`."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._folder = folder
        self.system = System(seed=seed)
        self.registry = MemoryRegistry(random.Random(seed))
        self._numbers = itertools.count(1)
        self.members: list[Member] = []
        self.announced: list[tuple[str, bool]] = []

    async def __aenter__(self) -> Self:
        await self.system.__aenter__()
        net = self.system.start("net", _Net)
        await self.system.ready(net, timeout=5)
        cell = self.system.cell(net)
        assert cell is not None
        self.transport = UnixTransport(cell.actor.context.task)
        self.view = View(self.registry)  # type: ignore[arg-type]  # with leases of its own for each worker
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.close()
        for member in self.members:
            await member.office.close()
        await self.system.__aexit__(None, None, None)

    async def start(self, *, node: Callable[[], str] = lambda: "", **options: Any) -> Processor:
        """The processor. `options`: fields of `ProcessorOptions`."""

        def announce(name: str, card: ModelCard | None) -> None:
            self.announced.append((name, card is not None))

        self.ref = self.system.start(
            "Processor",
            lambda: Processor(
                self.view,
                self.transport,
                ProcessorOptions(**options),
                ProcessorPlace(node=node),
                announce=announce,
            ),
            restart="temporary",
        )
        await self.system.ready(self.ref, timeout=5)
        cell = self.system.cell(self.ref)
        assert cell is not None
        assert isinstance(cell.actor, Processor)
        self.processor = cell.actor
        self.processor._checks = GrammarChecks(compiler())
        self.backend = ProcessorBackend(self.ref, self.processor, self.view)
        return self.processor

    async def worker(
        self,
        make: Callable[[EngineOptions, Spawn], Engine] = EchoCore,
        name: str = "sample",
        *,
        model: str = "sample",
        node: str = "",
        pool: str = "",
        files: Callable[[Reply], object] | None = None,
        **card: Any,
    ) -> Member:
        """A worker that is in the registry when this returns. `card`: fields of its card to change.

        `files(reply)` answers requests for the model's files in its place; they are counted anyway.
        """
        number = next(self._numbers)
        context = EndpointDispatcher()
        asked: list[Reply] = []

        def receive(endpoint: str, request: Request, reply: Reply) -> None:
            if isinstance(request, Files):
                asked.append(reply)
                if files is not None:
                    files(reply)
                    return
            context.receive(endpoint, request, reply)

        office = UnixServer(str(self._folder / f"{number}.sock"), receive)
        await office.start()
        lease = self.registry.grant()
        instance = Instance("dynamo", "backend", "generate", lease, {"unix": office.path}, node=node, pool=pool)

        def publish(found: ModelCard) -> None:
            changed = msgspec.structs.replace(found, **card)
            self.registry.put(instance_key(instance), msgspec.json.encode(instance), lease)
            self.registry.put(card_key(instance), msgspec.json.encode(changed), lease)

        actor = Worker(make, EngineOptions(name, sample.path(model)), publish, lambda: self.registry.revoke(lease))
        ref = self.system.start(f"worker{number}", lambda: actor, restart="temporary")
        await self.system.ready(ref, timeout=30)
        context.add(instance.path, ref)
        self.members.append(Member(instance, office, actor, context, asked))
        return self.members[-1]

    def leave(self, member: Member) -> None:
        """The worker goes from the registry; its streams go on."""
        self.registry.revoke(member.instance.instance_id)

    async def die(self, member: Member) -> None:
        """As when its process is killed: the lease is gone and the socket closed."""
        self.leave(member)
        await member.office.close()

    async def ask(self, **fields: Any) -> "Client":
        """Send a request as the HTTP side does; `messages` or `prompt` say which kind."""
        fields.setdefault("model", "sample")
        request: ChatRequest | CompletionRequest
        if "prompt" in fields:
            request = msgspec.convert(fields, CompletionRequest)
        else:
            fields["messages"] = fields.get("messages") or [{"role": "user", "content": fields.pop("text", "hello")}]
            request = msgspec.convert(fields, ChatRequest)
        endpoint = Completions() if "prompt" in fields else ChatCompletions()
        job = Job(f"job{next(self._numbers)}", endpoint, request, msgspec.json.encode(fields))
        client = Client()
        client.run = await self.backend.start(job, client)
        return client


class Client:
    """An outlet that keeps everything."""

    def __init__(self) -> None:
        self.run: Any = None
        self.choices = self.prompt_tokens = 0
        self.annotations: Mapping[str, Any] = {}
        self.texts: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        self.entries: dict[int, list[Logprob]] = {}
        self.reasons: dict[int, str] = {}
        self.error: RequestError | None = None
        self.over = asyncio.Event()

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        self.choices, self.prompt_tokens, self.annotations = choices, prompt_tokens, annotations
        self.texts = dict.fromkeys(range(choices), "")
        self.counts = dict.fromkeys(range(choices), 0)

    def text(self, index: int, text: str, tokens: int) -> None:
        assert index not in self.reasons
        self.texts[index] += text
        self.counts[index] += tokens

    def logprobs(self, index: int, entries: tuple[Logprob, ...]) -> None:
        self.entries.setdefault(index, []).extend(entries)

    def chunk(self, index: int, chunk: Any) -> None:
        raise AssertionError

    def placed(self, index: int, worker: Instance | None, prefill: Instance | None = None) -> None:
        raise AssertionError

    def echoed(self, texts: Sequence[str]) -> None:
        raise AssertionError

    def recorded(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        raise AssertionError

    def prompt_logprobs(self, index: int, entries: tuple[Logprob, ...], ids: Sequence[Sequence[int]]) -> None:
        raise AssertionError

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        assert index not in self.reasons

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        assert index not in self.reasons
        assert completion_tokens == self.counts[index]
        self.reasons[index] = reason
        if len(self.reasons) == self.choices:
            self.over.set()

    def fail(self, error: RequestError) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()

    async def wait(self, seconds: float = 20.0) -> "Client":
        async with asyncio.timeout(seconds):
            await self.over.wait()
        return self

    async def answers(self) -> Sequence[str]:
        """The texts of all choices; raises what ended the request instead."""
        await self.wait()
        if self.error is not None:
            raise self.error
        return [self.texts[index] for index in range(self.choices)]


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(DELAY, "1")
    return monkeypatch


Serve = Callable[..., Awaitable[str]]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where fetched files of models go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dynamod" / "models"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with House(tmp_path) as made:
        yield made


@pytest.fixture
async def serve(house: House) -> AsyncIterator[Serve]:
    """`serve(**settings)`: start a frontend of the house, with its work beside requests; its URL."""
    servers, tasks = [], []

    async def start(**settings: Any) -> str:
        server = make_server(extended(FrontendSettings)(host="127.0.0.1", port=0, **settings), house.backend)
        await server.start(listener(), spawn=asyncio.create_task)
        servers.append(server)
        tasks.extend(asyncio.create_task(work()) for work in server.background)
        return f"http://127.0.0.1:{server.port}"

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for server in servers:
        await server.stop(0)


@pytest.fixture(scope="session")
def words() -> SimpleNamespace:
    """Engines for test modules, which cannot import this file."""
    return SimpleNamespace(Manual=Manual, Seen=Seen, EchoFull=EchoFull, EchoCore=EchoCore)


Fill = Callable[[House], Awaitable[object]]


@contextlib.contextmanager
def living(folder: Path, fill: Fill, delay: str) -> Iterator[SimpleNamespace]:
    """The house in a thread of its own behind HTTP. `fill` starts its processor and workers, one model each."""
    patch = pytest.MonkeyPatch()
    patch.setenv(DELAY, delay)
    begun, stop = threading.Event(), asyncio.Event()
    found = SimpleNamespace(port=0)

    async def live() -> None:
        found.loop = asyncio.get_running_loop()
        async with House(folder) as house:
            await fill(house)
            async with asyncio.timeout(20):
                while len(house.processor.cards) < len(house.members):  # noqa: ASYNC110 - loaded in a thread
                    await asyncio.sleep(0.01)
            server = make_server(FrontendSettings(host="127.0.0.1", port=0), house.backend)
            await server.start(listener(), spawn=asyncio.create_task)
            found.port, found.house, found.server = server.port, house, server
            begun.set()
            await stop.wait()
            await server.stop(0)

    def run() -> None:
        try:
            asyncio.run(live())
        finally:
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30)
    assert found.port, "the house did not start"
    yield found
    found.loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    assert not thread.is_alive()
    patch.undo()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Fill], SimpleNamespace]]:
    """`lived(fill)`: a house for all tests of a module that leave nothing in it, such as refusals."""
    with contextlib.ExitStack() as stack:
        yield lambda fill: stack.enter_context(living(tmp_path_factory.mktemp("lived"), fill, "1"))


@pytest.fixture(scope="module")
def lasting(request: pytest.FixtureRequest, lived: Callable[[Fill], SimpleNamespace]) -> SimpleNamespace:
    """The house that the module's `fill` makes, for all its tests of refusals."""
    return lived(request.module.fill)


@pytest.fixture
async def refusing(lasting: SimpleNamespace) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client there."""
    url = f"http://127.0.0.1:{lasting.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The house for clients that block: models `sample` (tokens), `text`."""

    async def fill(house: House) -> None:
        await house.start()
        await house.worker(EchoCore, "sample")
        await house.worker(EchoFull, "text")

    with living(tmp_path_factory.mktemp("real"), fill, "0") as found:
        yield found


@pytest.fixture
async def client(house: Any, serve: Any, words: Any, until: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client at a frontend whose worker remembers what it is asked."""
    await house.start()
    await house.worker(words.Seen, tool_call_parser="hermes", reasoning_parser="basic")
    await until(lambda: house.processor.cards)
    url = await serve()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client
