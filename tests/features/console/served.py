"""A real HTTP server with the console, and a daemon whose answers the test decides."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec

from dynamod.features.console import pages
from dynamod.features.console.api import ConsoleApi
from dynamod.features.console.asking import Daemon, DaemonKnowsNot
from dynamod.features.console.recorder import Recorder
from dynamod.features.console.watch import Watch
from dynamod.features.top.commands import Look
from dynamod.http.icon import ICON
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.message.rows import Row
from dynamod.observe.records import RequestRecord
from dynamod.observe.timeline import ACCEPTED, ASKED, FINISHED, FIRST, PLACED, SENT, Mark, Timeline
from tests.ports import listener

HOST = "127.0.0.1"


class ToldDaemon(Daemon):
    """Says what the test has put there. `asked`: the streams that are open now. `changed`: commands that came."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.look = Look("0", "node", 7, at=1.0)
        self.answers: dict[str, Any] = {
            "status": {"problems": [], "components": 0, "models": [], "graphs": []},
            "ps": [],
        }
        self.lines: list[bytes] = []
        self.changed: list[tuple[str, dict[str, Any]]] = []
        self.asked = self.begun = 0
        self.every = 0.02
        self.gone = False

    async def read(self, path: str, query: Mapping[str, str] = {}) -> Any:
        if path not in self.answers:
            raise DaemonKnowsNot(f"nothing is known of {path}")
        return self.answers[path]

    async def change(self, path: str, arguments: Mapping[str, Any]) -> Any:
        self.changed.append((path, dict(arguments)))
        return []

    async def events(self, path: str, every: float, query: Mapping[str, str] = {}) -> AsyncIterator[bytes]:
        self.asked, self.begun = self.asked + 1, self.begun + 1
        try:
            while not self.gone:
                self.look = msgspec.structs.replace(self.look, at=self.look.at + 1)
                yield msgspec.json.encode(self.look)
                await asyncio.sleep(self.every)
        finally:
            self.asked -= 1

    async def log_lines(self, component: str, lines: int) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line
        await asyncio.Event().wait()


class Served:
    """The server, its daemon and its recorder, and a browser's questions."""

    def __init__(self, server: Server, daemon: ToldDaemon, recorder: Recorder, api: ConsoleApi) -> None:
        self.server, self.daemon, self.recorder, self.api = server, daemon, recorder, api

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server.port}"

    async def ask(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=named, json=body) as response,
        ):
            text = await response.text()
            kind = response.headers.get("Content-Type", "")
            return response.status, msgspec.json.decode(text) if "json" in kind else text, response.headers


@contextlib.asynccontextmanager
async def serving(*, admin: bool = False, serves_models: bool = True, **settings: Any) -> AsyncIterator[Served]:
    """A server with the console until the end of the block."""
    tasks: set[asyncio.Task[Any]] = set()

    def spawn(work: Any) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = Server(FrontendSettings(**settings), [], dict)
    daemon, recorder = ToldDaemon(), Recorder(lambda: server.open)
    watch = Watch(daemon, recorder)
    api = ConsoleApi(server, daemon, watch, lambda: recorder, admin=admin, serves_models=serves_models)
    server.add(*api.routes(), Route("GET", "/", pages.page), ICON)
    with listener() as sock:
        await server.start(sock, spawn=spawn)
        spawn(watch.run())
        try:
            yield Served(server, daemon, recorder, api)
        finally:
            api.end()
            await server.stop(grace=1.0)
            for task in [*tasks]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def record(number: int, **fields: Any) -> RequestRecord:
    """A request that has ended."""
    given: dict[str, Any] = {"id": f"request-{number}", "time": time.time(), "duration_ms": 100.0 + number % 50}
    given |= {"status": 200, "model": "sample", "first_ms": 20.0, "prompt_tokens": 64, "completion_tokens": 32}
    return RequestRecord(**{**given, "finish": "stop", "process": "agg/ingress.0", **fields})


def travelled() -> Timeline:
    """As the ingress makes it: its marks have objects that no browser gets."""
    marks: list[Mark] = [
        (ASKED, 0, 1.02, None),
        (PLACED, 0, 1.03, (object(), object(), 0.004)),
        (SENT, 0, 1.03, object()),
    ]
    marks += [(ACCEPTED, 0, 1.04, None), (FIRST, 0, 1.08, None), (FINISHED, 0, 1.2, None)]
    times = {"read": 1.005, "turn": 1.006, "checked": 1.01, "lowering": 1.011, "lowered": 1.02, "ended": 1.21}
    return Timeline(begun=1.0, arrived=1.0, marks=deque(marks), trace=object(), **times)


def row(process: str, **fields: Any) -> Row:
    """A process that is Ready."""
    given: dict[str, Any] = {"graph": process.partition("/")[0], "component": "Worker", "process": process}
    return Row(**{**given, "state": "Ready", "pid": 1, "uptime": 5.0, **fields})
