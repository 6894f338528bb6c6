"""The frontend component: the HTTP server in the ingress process."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web

from dynamod.actor import Actor, Reason
from dynamod.graph.typed import given, validate
from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings, from_environment
from dynamod.ingress.api.table import make_server
from dynamod.ingress.messages import GetBackend
from dynamod.ingress.processor import ProcessorBackend
from dynamod.message.errors import UserError
from dynamod.message.shares import PROCESSES, Shares
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.progress import progress

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class FrontendComponent(Actor):
    """Listens on the sockets that the daemon bound and passes requests to the processor of the same process."""

    def __init__(self, ctx: ComponentContext) -> None:
        self._ctx = ctx
        self._server: Server | None = None
        self._background: list[asyncio.Task[None]] = []

    async def started(self) -> None:
        """Begin to accept clients; models appear as the processor finds them."""
        ctx = self._ctx
        processor = ctx.process_context.processor
        if processor is None:
            raise UserError(
                f"{ctx.name} needs a Processor in its process", f"write {ctx.name}.link(Processor) in the graph"
            )
        backend: ProcessorBackend = await processor.ask(GetBackend(), timeout=5.0)
        settings = validate(FrontendSettings, given(ctx.config, from_environment()), ctx.name)
        routes = [Route("GET", "/health/progress", self._progress)]
        self._server = make_server(
            settings, backend, self._families, routes, self._where, ctx.process_context.plan.control
        )
        ctx.process_context.http.append(self._server.metrics)
        memory, index = ctx.shares(), ctx.process_context.plan.index
        shares = None if memory is None or index >= PROCESSES else Shares(memory, index)
        await self._server.start(*ctx.listeners(), spawn=self.context.task, shares=shares)
        self._background = [self.context.task(work()) for work in self._server.background]

    def _where(self) -> tuple[str, str]:
        """The names of the node and of the process."""
        process = self._ctx.process_context
        return process.registry.node, process.plan.name

    async def _progress(self, _context: RequestContext) -> web.Response:
        """What each worker does. 503: no worker makes progress, or the daemon does not answer."""
        workers, lacks = await progress(self._ctx.process_context)
        alive = not lacks and any(one.state in ("ready", "slow", "starting") for one in workers)
        body = {"status": "healthy" if alive else "unhealthy", "workers": workers}
        return json_response(body | ({"message": lacks} if lacks else {}), 200 if alive else 503)

    async def _families(self) -> "Iterable[Metric]":
        """What /metrics shows of this process in addition to the server's counters; imported and made at a scrape."""
        from dynamod.runtime.statistics import process_families

        return await process_families(self._ctx.process_context)

    async def drained(self) -> None:
        """Accept no more clients, let open answers finish."""
        self._end_background()
        if self._server is not None:
            await self._server.stop(grace=600.0)
            self._server = None

    async def stopping(self, reason: Reason) -> None:
        """Accept no more clients; open answers have the process's grace to finish (a drain waits for them)."""
        self._end_background()
        if self._server is not None:
            await self._server.stop(grace=self._ctx.process_context.grace)

    def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        self._background.clear()
