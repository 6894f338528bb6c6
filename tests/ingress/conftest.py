"""A frontend on a free port with a fake backend whose answers the test decides."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

import pytest
import uvloop

from dynamod import sample
from dynamod.extension.settings import extended
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.table import make_server
from dynamod.ingress.base import Job, ResponseSink
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import RequestError
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model
from tests.ports import listener

BOTH_LOOPS = ("test_stream_bytes", "test_leaving")  # what stands or falls with the transport


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    both = any(name in item.nodeid for name in BOTH_LOOPS)
    return {"asyncio": asyncio.new_event_loop} | ({"uvloop": uvloop.new_event_loop} if both else {})


@cache
def sample_model() -> Model:
    return Model.load(read_card(sample.path("sample"), name="org/model"))


Play = Callable[[Job, ResponseSink], Awaitable[None]]


class FakeRun:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.times_cancelled = 0
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.times_cancelled += 1
        self.cancelled.set()
        if self.task is not None:
            self.task.cancel()


class FakeBackend:
    """Not the real one: plays `words` to every choice, or whatever `play` says; `refuse` is raised by `start`."""

    parts: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.cards: dict[str, ModelCard] = {
            "org/model": ModelCard(name="org/model", context_length=4096, created=7),
        }
        self.alive = True
        self.words = ["Hello", " wor", "", "ld", ' \u00e9\u2028"\\\n']
        self.reason = "stop"
        self.refuse: RequestError | None = None
        self.play: Play | None = None
        self.runs: list[FakeRun] = []
        self.jobs: list[Job] = []

    def models(self) -> Mapping[str, ModelCard]:
        return self.cards

    def loading(self) -> Mapping[str, ModelCard]:
        return {}

    def askable(self) -> Mapping[str, ModelCard]:
        return self.cards

    def model(self, name: str) -> Model | None:
        return None if self.cards[name].kind == "text" else sample_model()

    def health(self) -> Mapping[str, Any]:
        if not self.alive:
            return {"endpoints": [], "instances": []}
        return {"endpoints": ["dyn://dynamo.worker.generate"], "instances": [{"instance_id": 1}]}

    async def start(self, job: Job, sink: ResponseSink) -> FakeRun:
        self.jobs.append(job)
        if self.refuse is not None:
            raise self.refuse
        run = FakeRun()
        self.runs.append(run)
        run.task = asyncio.get_running_loop().create_task((self.play or self.say)(job, sink))
        return run

    async def say(self, job: Job, sink: ResponseSink) -> None:
        prompt = getattr(job.request, "prompt", "")
        prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        choices = prompts * (job.request.n or 1)
        sink.started(choices, 5, {})
        for word in self.words:
            for index in range(choices):
                sink.text(index, word, 1)
            await asyncio.sleep(0)
        for index in range(choices):
            sink.finish(index, self.reason, len(self.words))

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def serve(backend: FakeBackend) -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    """Start a server with settings; all are stopped at the end and must leave no task behind."""
    before = asyncio.all_tasks()
    servers: list[Server] = []

    async def start(**settings: Any) -> Server:
        server, sock = (
            make_server(extended(FrontendSettings)(host="127.0.0.1", port=0, **settings), backend),
            listener(),
        )
        try:
            await server.start(sock, spawn=asyncio.create_task)
        except BaseException:
            sock.close()
            raise
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop(0)
    for run in backend.runs:
        if run.task is not None:
            run.task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() - before if "dynamod" in repr(task) or "aiohttp" in repr(task)]
    assert not left


@pytest.fixture
async def server(serve: Callable[..., Awaitable[Server]]) -> Server:
    return await serve()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    async def wait(holds: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 what the tests wait for has no event
                await asyncio.sleep(0.001)

    return wait


class Raw:
    """A client that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self, seconds: float = 5) -> tuple[int, dict[str, str]]:
        text = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), seconds)).decode()
        first, *lines = text.strip().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in fields.items()}

    async def chunk(self) -> bytes:
        size = int(await asyncio.wait_for(self.reader.readline(), 5), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), 5)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def chunks(self) -> list[bytes]:
        found = []
        while part := await self.chunk():
            found.append(part)
        return found

    async def body(self, headers: dict[str, str]) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(int(headers["content-length"])), 5)

    def post(self, path: str, body: bytes, version: str = "1.1", **headers: str) -> None:
        lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}"]
        headers = {"content_type": "application/json", **headers}
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Server], Awaitable[Raw]]]:
    clients: list[Raw] = []

    async def open_(server: Server, limit: int = 2**24, sock: Any = None) -> Raw:
        where = {"sock": sock} if sock is not None else {"host": "127.0.0.1", "port": server.port}
        clients.append(Raw(*await asyncio.open_connection(limit=limit, **where)))
        return clients[-1]

    yield open_
    for client in clients:
        client.writer.close()
        try:
            await asyncio.wait_for(client.writer.wait_closed(), 2)
        except (ConnectionError, TimeoutError):
            pass


@pytest.fixture(scope="module")
def threaded() -> Iterator[tuple[str, int, FakeBackend]]:
    """A server in a thread of its own, for clients that block: (host, port, backend)."""
    ready: list[tuple[Server, FakeBackend]] = []
    loop = asyncio.new_event_loop()
    begun = threading.Event()

    async def begin() -> None:
        fake = FakeBackend()
        server = make_server(FrontendSettings(host="127.0.0.1", port=0), fake)
        await server.start(listener(), spawn=asyncio.create_task)
        ready.append((server, fake))
        begun.set()

    def live() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(begin())
        loop.run_forever()

    thread = threading.Thread(target=live)
    thread.start()
    assert begun.wait(10)
    server, fake = ready[0]
    yield "127.0.0.1", server.port, fake
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
