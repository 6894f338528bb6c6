"""A user's service class as an actor: every endpoint is a message type of its mailbox."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar

from dynamod.actor import Actor, Reason
from dynamod.engine.base import Job
from dynamod.engine.python.handler import Handler
from dynamod.graph.endpoint import DynamoTransport, EndpointSpec
from dynamod.graph.graph import ServiceSpec
from dynamod.graph.hooks import hooks
from dynamod.graph.load import load_service
from dynamod.graph.service_config import find_key
from dynamod.message.errors import DynamodError, UserError
from dynamod.observe.logs import adopt_structlog

from .context import ComponentContext
from .dependency import Dependency
from .open_calls import OpenCalls

log = logging.getLogger("dynamod.service")

LIVENESS_INTERVAL = 5.0
"""Seconds between looks at the liveness and readiness hooks; `@service(liveness_interval=...)` or the config decide."""
HOOK_TIMEOUT = 10.0


class NotAlive(DynamodError):
    """A liveness hook said no: the component crashes and is started afresh."""


class ServiceHost(Actor):
    """Owns the instance of a user's class. Requests run alongside each other, each ends with its reader."""

    mailbox_capacity = 1024
    invokes: ClassVar[Mapping[str, type[Job]]] = {}

    def __init__(self, ctx: ComponentContext) -> None:
        self._ctx = ctx
        self._instance: Any = None
        self._endpoints: dict[str, EndpointSpec] = {}
        self._calls: dict[str, OpenCalls] = {}  # by endpoint; these are in the registry while the service is ready
        self._ready = False
        self._hook_error = ""
        self._http: Any = None
        self._tending: asyncio.Task[Any] | None = None

    async def started(self) -> None:
        """Make the instance, run its start hooks, serve its endpoints."""
        ctx = self._ctx
        spec = ServiceSpec.from_dict(ctx.service.spec)
        service = load_service(spec)
        adopt_structlog()
        clients = {name: Dependency(ctx.process_context, info) for name, info in ctx.service.spec["depends"].items()}
        self._instance = service.create(clients, spec.config)
        self._hooks = hooks(service)
        for name in self._hooks.on_start:
            await _maybe(getattr(self._instance, name)())
        self._endpoints = dict(service.endpoints)
        await ctx.process_context.registry.leased(timeout=30)
        routes = []
        for name, endpoint in self._endpoints.items():
            if DynamoTransport.DEFAULT in endpoint.transports:
                self._calls[name] = OpenCalls(f"{ctx.name}.{name}", self._handler(endpoint), self.context.task)
                ctx.serve(name, self.context.ref, self.invokes[name])
            if DynamoTransport.HTTP in endpoint.transports:
                routes.append(endpoint)
        if routes:
            from .service_http import ServiceHttp

            self._http = ServiceHttp(self._instance, routes, ctx)
            await self._http.start()
        for name in list(self._calls)[:1]:
            await ctx.reachable(name)
        self._set_ready(await self._is_ready())
        if self._hooks.liveness or self._hooks.readiness:
            self._tending = self.context.task(self._tend(_interval(service.options, spec.config)), "look at hooks")

    async def drained(self) -> None:
        """Leave the registry and wait for the calls that run."""
        self._leave()
        for calls in self._calls.values():
            await calls.idle()

    async def stopping(self, reason: Reason) -> None:
        """Leave the registry, close the HTTP side, run the shutdown hooks."""
        self._leave()
        for calls in self._calls.values():
            calls.fail(reason)
        if self._http is not None:
            await self._http.stop()
        if self._instance is not None:
            for name in self._hooks.on_shutdown:
                await _maybe(getattr(self._instance, name)())

    def _leave(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        self._ctx.withdraw()

    async def _tend(self, interval: float) -> None:
        """Look at the hooks again and again; raises NotAlive, or what a liveness hook raises."""
        while True:
            await asyncio.sleep(interval)
            for name in self._hooks.liveness:
                try:
                    alive = await self._hook(name)
                except TimeoutError:
                    text = f"{self._ctx.name}.{name}() did not answer within {HOOK_TIMEOUT:g} s"
                    raise NotAlive(text) from None
                if not alive:
                    raise NotAlive(f"{self._ctx.name}.{name}() says that the service does not work any more")
            self._set_ready(await self._is_ready())

    async def _is_ready(self) -> bool:
        for name in self._hooks.readiness:
            try:
                if not await self._hook(name):
                    return False
            except Exception as error:
                if f"{error!r}" != self._hook_error:  # it is asked again and again
                    self._hook_error = f"{error!r}"
                    log.exception("%s.%s failed: the service is not ready", self._ctx.name, name)
                return False
        self._hook_error = ""
        return True

    async def _hook(self, name: str) -> bool:
        """What the hook says; no answer (None) is a yes, and raising is the way to say no."""
        value = getattr(self._instance, name)()
        if inspect.isawaitable(value):
            async with asyncio.timeout(HOOK_TIMEOUT):
                value = await value
        return value is None or bool(value)

    def _set_ready(self, ready: bool) -> None:
        if ready == self._ready:
            return
        self._ready = ready
        if self._hooks.readiness:
            log.info("%s is %s", self._ctx.name, "ready" if ready else "not ready: it leaves the registry")
        for name in self._calls:
            if ready:
                self._ctx.publish(name)
            else:
                self._ctx.withdraw(name)

    def _handler(self, endpoint: EndpointSpec) -> Handler:
        instance = self._instance

        def stream(request: Any) -> AsyncGenerator[Any, None]:
            return endpoint.stream(instance, request)

        return Handler(stream, f"{self._ctx.name}.{endpoint.name}")

    async def invoke(self, message: Job) -> None:
        """Start a call of an endpoint."""
        self._calls[type(message).__name__].take(message)

    def inspection(self) -> dict[str, Any]:
        """Calls so far and now."""
        calls = self._calls.values()
        return {
            "endpoints": sorted(self._endpoints),
            "calls": sum(one.begun for one in calls),
            "running": sum(len(one) for one in calls),
        }


def host_class(ctx: ComponentContext) -> type[ServiceHost]:
    """A host for one service, with a message type of its own for each endpoint."""
    names = list(ctx.service.spec.get("endpoints", {}))
    invokes = {name: type(name, (Job,), {}) for name in names}
    receivers = {**ServiceHost.receivers, **dict.fromkeys(invokes.values(), ServiceHost.invoke)}
    return type(f"{ctx.name}Host", (ServiceHost,), {"invokes": invokes, "receivers": receivers})


def _interval(options: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    key = find_key(config, "liveness_interval")
    value = config[key] if key is not None else options.get("liveness_interval", LIVENESS_INTERVAL)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"liveness_interval is {value!r}", "give seconds")
    return float(value)


async def _maybe(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
