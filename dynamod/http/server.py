"""The HTTP server: start, stop, and the frame around every request."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from dynamod.message.errors import Internal, Overloaded, RequestError
from dynamod.message.shares import Shares
from dynamod.observe.frequent import write_waiting
from dynamod.observe.metrics import load, rendered

from .accepting import Listener
from .answer import WholeAnswer, json_response
from .connection import Connection, HttpServer
from .context import GONE, RequestContext
from .cors import name_setting, preflight
from .errors import error_response
from .keys import Keys
from .metrics import Collect, Metrics, families
from .outlet import Outlets
from .routes import Handler, Route, Routes
from .settings import FrontendSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("dynamod.frontend")

State = Callable[[], Mapping[str, Any]]
"""Returns `endpoints` (names of what can be asked now) and `instances` (JSON-like rows that requests go to)."""

_FLUSH = 1.0  # seconds that ended streams have to tell their clients
_FIRST_REQUEST = 0.5  # seconds for the first request of a connection that was accepted before the listener closed
_ACCEPTING = 0.01  # seconds between looks whether it has come


class Server:
    """One HTTP server with these routes in addition to /health, /live and /metrics.

    `state`: what /health shows. `collect`: the metric families that /metrics shows in addition to its own.
    `outlets`: of its streams.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        routes: Iterable[Route],
        state: State,
        collect: Collect | None = None,
        outlets: Outlets | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.metrics_prefix)
        self.collectors: list[Collect] = [] if collect is None else [collect]
        """What /metrics shows in addition to the counters of this server."""
        self._known = [*routes, *_health_routes(state, self._families)]
        self._routes = Routes(self._known)
        self.keys = Keys(settings)
        self._origins = settings.origins
        self._http: HttpServer | None = None
        self._listeners: list[Listener] = []
        self._shares: Shares | None = None
        self._outlets = outlets or Outlets()
        self._busy: dict[RequestContext, Connection] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self.background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Work alongside requests, until it is cancelled; the owner of the server runs it, and ends it first."""

    @property
    def port(self) -> int:
        """The port it listens on. Raises RuntimeError before `start`."""
        if not self._listeners:
            raise RuntimeError("the server is not listening")
        return int(self._listeners[0].sock.getsockname()[1])

    @property
    def inflight(self) -> int:
        """Requests in work."""
        return len(self._busy)

    @property
    def open(self) -> Collection[RequestContext]:
        """The requests in work, in the order of their arrival."""
        return self._busy.keys()

    def add(self, *routes: Route) -> None:
        """Serve these, too. A route takes the place of an earlier one of its method and path."""
        self._known += routes
        self._routes = Routes(self._known)

    def find(self, method: str, path: str) -> Handler:
        """The handler of a route. Raises NoRoute or NoMethod."""
        return self._routes.find(method, path)

    async def start(
        self,
        *sockets: socket.socket,
        spawn: Callable[[Coroutine[Any, Any, None]], Any],
        shares: Shares | None = None,
    ) -> None:
        """Accept clients at `sockets`, which are bound, of one port. Raises UserError when TLS files are wrong.

        `spawn`: runs a coroutine as a task of the owner. `shares`: what the processes that accept there with this one
        know of each other; None: it is alone.
        """
        tls = self.settings.tls()
        self._stopping = False
        self._http = HttpServer(self._handle, self.settings.client_timeout, self._outlets, shares)
        self._shares = shares
        if shares is not None:
            shares.join()
        hosts = [str(sock.getsockname()[0]) for sock in sockets]
        self._listeners = [Listener(sock, self._http, tls, shares, spawn) for sock in sockets]
        for listener in self._listeners:
            listener.start()
        self.keys.watch()
        secure = "on" if tls is not None else "off"
        log.info("listening on %s port=%d tls=%s", ",".join(hosts), self.port, secure)
        if not self.keys and not all(ipaddress.ip_address(host).is_loopback for host in hosts):
            text = "other machines may use the models at port %d without a key: set `api_key_file`, or leave `host` out"
            log.warning(text, self.port)

    async def stop(self, grace: float = 5.0) -> None:
        """Take no new requests, let running ones finish for `grace` seconds, then end them with an error.

        Cancelling this is safe but leaves connections open; call it again. Returns when no task is left.
        """
        if self._http is None:
            return
        self._stopping = True
        self.keys.close()
        for listener in self._listeners:
            listener.close()
        if self._shares is not None:
            self._shares.leave()
        await self._wait_first_requests()
        self._http.pre_shutdown()
        busy = set(self._busy.values())
        for connection in self._http.connections:
            if connection not in busy:
                connection.force_close()
        await self._wait_idle(grace)
        for context in list(self._busy):
            context.abort(Overloaded("the server is shutting down", code="shutting_down", retry_after=1))
        await self._wait_idle(_FLUSH)
        await self._http.shutdown(0.05)
        await self._wait_idle(_FLUSH)
        self._http = None
        self._listeners.clear()
        write_waiting()  # the lines of the last requests
        if self.metrics.records is not None:
            await self.metrics.records.close()

    async def _wait_first_requests(self) -> None:
        """Wait until each new connection has sent a request: a client whose connection breaks cannot know its fate."""
        assert self._http is not None
        end = time.monotonic() + _FIRST_REQUEST
        while time.monotonic() < end and (self._http.waits() or any(one.beginning for one in self._listeners)):  # noqa: ASYNC110
            await asyncio.sleep(_ACCEPTING)

    async def _wait_idle(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        context = RequestContext(request, self.metrics, self._origins)
        connection: Connection = request.protocol  # type: ignore[assignment]
        self._busy[context] = connection
        connection.is_new = False
        self._idle.clear()
        status = GONE
        try:
            response = await self._answer(request, context)
            status = response.status
            if isinstance(response, WholeAnswer):
                await response.prepare(request)  # it is out before the request ends here, and has its times
            if self.metrics.records is not None:
                self.metrics.records.answered(context, response)
            return response
        finally:
            context.end(status)
            connection.arrived = 0.0
            del self._busy[context]
            if not self._busy:
                self._idle.set()

    async def _answer(self, request: web.BaseRequest, context: RequestContext) -> web.StreamResponse:
        form = self._routes.errors(request.rel_url.path, request.headers)
        if form.id_header:
            context.headers[form.id_header] = context.id
        try:
            asked = preflight(request.method, request.headers, context.headers) if self._origins else None
            response = asked or await self._find(request, context)(context)
        except RequestError as error:
            if request.method == "OPTIONS":
                name_setting(error, request.headers)
            context.error = error.with_traceback(None)  # whose frames hold the body, and in a circle themselves
            overload = isinstance(error, Overloaded)
            status = self.settings.overload_status if overload else error.status
            response = error_response(error, status, form, context.id)
        except ConnectionError:
            raise
        except Exception:
            log.exception("request id=%s path=%s failed unexpectedly", context.id, request.rel_url.raw_path)
            context.error = internal = Internal("internal error; the server's log has it under this x-request-id")
            if request.writer.output_size > 0:
                raise ConnectionAbortedError("part of the answer is out") from None
            response = error_response(internal, 500, form, context.id)
        if not response.prepared:
            response.headers.update(context.headers)
            if self._stopping:
                response.force_close()
        return response

    def _find(self, request: web.BaseRequest, context: RequestContext) -> Handler:
        """The handler, when the request has a key where one is needed, and the key allows it.

        Raises Unauthorized, RateLimited, NoRoute or NoMethod.
        """
        path = request.rel_url.path
        guarded = self._routes.guarded(path)
        if guarded or (self.settings.guard_status and path != "/live"):
            context.caller.owner, context.caller.client = self.keys.check(request.headers)
            client = context.caller.client
            if client is not None and guarded and self._routes.counts(request.method, path):
                try:
                    client.take(time.monotonic())
                    context.caller.counts = True
                finally:
                    now = time.monotonic()
                    form = self._routes.errors(path, request.headers)
                    context.headers |= client.headers(now) | form.limits(client.limits(now))
        return self._routes.find(request.method, path)

    async def _families(self) -> "list[Metric]":
        own = [*families(self.metrics), *self.keys.families(self.metrics.prefix)]
        return own + [family for collect in self.collectors for family in await collect()]


def _health_routes(state: State, collect: Collect) -> list[Route]:
    """The routes, which answer in NVIDIA Dynamo's forms. /health is 503 unless a worker can take requests.

    `collect`: the families that /metrics shows.
    """

    async def live(_context: RequestContext) -> web.Response:
        return json_response({"message": "Service is live", "status": "live"})

    async def health(_context: RequestContext) -> web.Response:
        found = state()
        endpoints, instances = list(found.get("endpoints", ())), list(found.get("instances", ()))
        if not endpoints:
            body = {"instances": instances, "message": "No endpoints available", "status": "unhealthy"}
            return json_response(body, 503)
        return json_response({"endpoints": endpoints, "instances": instances, "status": "healthy"})

    async def metrics(context: RequestContext) -> web.Response:
        await load()
        body, kind = rendered(await collect(), context.request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    status = [Route("GET", path, health) for path in ("/health", "/ping")]
    return [*status, Route("GET", "/live", live), Route("GET", "/metrics", metrics)]
