"""What the pages of the console ask: state as events, a request's decisions, logs, and changes."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from dynamod import __version__
from dynamod.http.answer import json_response
from dynamod.http.body import MIN_RATE, BodyBudget, check_json_type, read_body
from dynamod.http.context import RequestContext
from dynamod.http.errors import Forbidden
from dynamod.http.keys import Client
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.stream import EventFrames
from dynamod.message.errors import BadRequest, NotFound, Overloaded
from dynamod.router.decision import Decision

from . import pages
from .access import Access, access, check_admin, check_change, needs
from .asking import Daemon, DaemonKnowsNot
from .recorder import Recorder
from .watch import Reader, Watch

ROOT = "/v1/console"
READERS = 32
"""Consoles that may be open at a time."""
BODY = 64 * 1024
"""Bytes of a change."""
LINES = 500
"""Log lines that are shown at first."""
CHANGES = ("restart", "scale", "drain", "switch", "plan")
"""Commands of the control socket that the console may give."""
QUESTIONS = ("planner", "memory")
"""Questions of the control socket that the console may ask, in addition to those of its events."""

Event = tuple[str, bytes]


class ConsoleApi:
    """The routes of one HTTP server. `serves_models`: its clients may ask models at /v1, too.

    `recorder()`: of the server's requests, from the first open console on; None: it has none. `decisions()`: routing
    decisions that are kept. `has`: by name, whether
    the server has routes that some pages ask.
    """

    def __init__(
        self,
        server: Server,
        daemon: Daemon,
        watch: Watch,
        recorder: Callable[[], Recorder | None] = lambda: None,
        decisions: Callable[[], Sequence[Decision]] = tuple,
        *,
        admin: bool,
        serves_models: bool,
        has: Mapping[str, Callable[[], bool]] = {},
    ) -> None:
        self._server, self._daemon, self._watch = server, daemon, watch
        self._recorder, self._decisions = recorder, decisions
        self._admin, self._serves_models, self._has = admin, serves_models, has
        self._open: set[Reader] = set()
        self._bodies = BodyBudget(READERS * BODY)

    def routes(self) -> list[Route]:
        """The files, which need no key, and the questions, which need one where the server has keys."""
        own: list[tuple[str, str, Any, bool]] = [
            ("GET", ROOT, self.hello, False),
            ("GET", f"{ROOT}/events", self.events, False),
            ("GET", f"{ROOT}/requests/", self.decision, True),
            ("GET", f"{ROOT}/logs", self.logs, False),
            ("GET", f"{ROOT}/keys", self.keys, False),
            ("GET", f"{ROOT}/whatif", self.what_if, False),
            *(("GET", f"{ROOT}/ask/{name}", self.ask, False) for name in QUESTIONS),
            *(("POST", f"{ROOT}/do/{name}", self.change, False) for name in CHANGES),
        ]
        found = [Route(method, path, handler, guarded=True, prefix=prefix) for method, path, handler, prefix in own]
        return [*found, Route("GET", pages.PREFIX, pages.file, prefix=True), Route("GET", "/console", pages.page)]

    def end(self) -> None:
        """End all open answers: the server ends."""
        for reader in self._open:
            reader.end()

    def _access(self, context: RequestContext) -> Access:
        request = context.request
        keys = bool(self._server.keys)
        found = access(request.headers, request.remote, context.caller, keys=keys, console_admin=self._admin)
        return Access(True) if keys and self._admin and not self._serves_models else found

    async def hello(self, context: RequestContext) -> web.StreamResponse:
        """What the browser may do here."""
        return _json(self._hello(self._access(context)))

    def _hello(self, found: Access) -> dict[str, Any]:
        return {
            "version": __version__,
            "admin": found.admin,
            "keys": bool(self._server.keys),
            "serves_models": self._serves_models,
            **{name: has() for name, has in self._has.items()},
            "needs": "" if found.admin else needs(keys=bool(self._server.keys)),
        }

    async def events(self, context: RequestContext) -> web.StreamResponse:
        """State as server-sent events, while the console is open."""
        found = self._access(context)
        self._recorder()  # requests are kept from now on
        reader = Reader(found.owner)
        reader.tell("hello", msgspec.json.encode(self._hello(found)))
        self._watch.enter(reader)
        try:
            return await self._stream(context, reader, self._told(reader))
        finally:
            self._watch.leave(reader)

    async def _told(self, reader: Reader) -> AsyncIterator[Event]:
        while not reader.over:
            await reader.changed.wait()
            for event in reader.take():
                yield event

    async def decision(self, context: RequestContext) -> web.StreamResponse:
        """The record of a request and why it went where it went."""
        found, recorder = self._access(context), self._recorder()
        request = context.request.rel_url.path.removeprefix(f"{ROOT}/requests/")
        record = recorder.find(request, found.owner) if recorder is not None else None
        if found.owner is not None and record is None:
            raise NotFound("no request of this key has this id")
        decisions: list[dict[str, Any]] = []
        with contextlib.suppress(DaemonKnowsNot):
            decisions = list(await self._daemon.read(f"requests/{quote(request, safe='')}/decision"))
        return _json({"record": record, "decisions": [_without_large(one) for one in decisions]})

    async def what_if(self, context: RequestContext) -> web.StreamResponse:
        """The kept decisions under another policy."""
        from .whatif import what_if

        found, recorder = self._access(context), self._recorder()
        if found.owner is not None:
            raise Forbidden(f"decisions about the requests of all keys need {needs(keys=True)}")
        first_ms = (
            {one["id"]: one["first_ms"] for one in recorder.after(0, None) if "first_ms" in one} if recorder else {}
        )
        return _json(what_if(self._decisions(), context.request.query.get("mode", ""), first_ms))

    async def logs(self, context: RequestContext) -> web.StreamResponse:
        """Log lines of a component as events."""
        check_admin(self._access(context), keys=bool(self._server.keys))
        reader = Reader(None)
        return await self._stream(context, reader, self._lines(context.request.query.get("component", "")))

    async def _lines(self, component: str) -> AsyncIterator[Event]:
        async for line in self._daemon.log_lines(component, LINES):
            yield "line", msgspec.json.encode(line.decode(errors="replace"))

    async def keys(self, context: RequestContext) -> web.StreamResponse:
        """The keys with limits, and what they have used; never the keys themselves."""
        check_admin(self._access(context), keys=bool(self._server.keys))
        return _json({"keys": [_key(name, client) for name, client in self._server.keys.clients.items()]})

    async def ask(self, context: RequestContext) -> web.StreamResponse:
        """A question of the control socket."""
        self._access(context)
        name, answer = context.request.rel_url.path.removeprefix(f"{ROOT}/ask/").rstrip("/"), []
        with contextlib.suppress(DaemonKnowsNot):  # there is no planner, for instance
            answer = await self._daemon.read(name)
        return _json(answer)

    async def change(self, context: RequestContext) -> web.StreamResponse:
        """A command of the control socket that changes something."""
        headers = context.request.headers
        check_change(headers, self._access(context), keys=bool(self._server.keys))
        check_json_type(headers)
        with self._bodies.share() as share:
            body = await read_body(context.request, BODY, share, MIN_RATE)
        try:
            given = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise BadRequest('the body is no JSON object; for example {"component": "Worker"}')
        name = context.request.rel_url.path.removeprefix(f"{ROOT}/do/").rstrip("/")
        context.notes["console"] = name
        return _json(await self._daemon.change(name, given))

    async def _stream(
        self, context: RequestContext, reader: Reader, events: AsyncIterator[Event]
    ) -> web.StreamResponse:
        """Write events until the browser leaves or the server ends. Raises Overloaded where too many are open."""
        if len(self._open) >= READERS:
            raise Overloaded(f"{READERS} consoles are open, no more may be", retry_after=5)
        self._open.add(reader)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers={**headers, **pages.HEADERS, **context.headers})
        frames = EventFrames(chunked=False)
        try:
            await response.prepare(context.request)
            async for name, payload in events:
                await response.write(frames.event(name, payload))
                if reader.over:
                    break
            await response.write_eof()
        finally:
            self._open.discard(reader)
            await events.aclose()  # type: ignore[attr-defined]  # an async generator
        return response


def _without_large(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Instance ids as text: they have more digits than a number has in a browser."""
    found = dict(decision)
    for name in ("chosen", "shadow"):
        if isinstance(found.get(name), int):
            found[name] = f"{found[name]:x}"
    found["candidates"] = [
        {**one, "instance": f"{one['instance']:x}", "tied": one["instance"] in found.get("tied", ())}
        for one in found.get("candidates", ())
    ]
    found["excluded"] = [[f"{instance:x}", why] for instance, why in found.get("excluded", ())]
    return found


def _key(name: str, client: Client) -> dict[str, Any]:
    key = client.key
    return {
        "name": name,
        "admin": key.admin,
        "models": key.models,
        "minute": {
            one.name: {"used": one.size - one.remaining, "limit": one.size} for one in client.limits(time.monotonic())
        },
        "inflight": key.inflight,
        "open": client.inflight,
        "prompt_tokens": client.prompt_tokens,
        "completion_tokens": client.completion_tokens,
        "requests": sum(client.requests.values()),
        "refused": dict(client.refused),
    }


def _json(value: Any) -> web.Response:
    return json_response(value, headers=pages.HEADERS)
