"""The actors behind endpoints: one for each `serve_endpoint`, in the registry while it is Ready."""

import logging
from collections.abc import Callable
from typing import Any

from dynamod.actor import Actor, Reason, Ref, handle
from dynamod.discovery.keys import static_key
from dynamod.engine.base import Engine, EngineOptions, Job, Spawn
from dynamod.engine.python.handler import Handler
from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.message.discovery import ModelCard
from dynamod.message.worker import Call
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.open_calls import OpenCalls
from dynamod.worker.worker import Worker

from .engine import ServedText, ServedTokens

log = logging.getLogger("dynamod.python")


class Place:
    """An endpoint's place: what leads requests to its actor, and its entry in the registry."""

    def __init__(self, ctx: ComponentContext, endpoint: str, card: ModelCard | None, *, static: bool) -> None:
        self._ctx, self._endpoint, self._card, self._static = ctx, endpoint, card, static
        self._static_key = ""
        self.path = ctx.path(endpoint)
        self.published: Callable[[], None] = lambda: None  # called when others can find it

    async def publish(self, ref: Ref) -> None:
        """Let others find it. Raises UserError when the model's name, or a static address, is taken."""
        ctx = self._ctx
        ctx.serve(self._endpoint, ref)
        if self._static:
            self._static_key = static_key(await ctx.publish_static(self._endpoint))
        else:
            if self._card is not None:
                await ctx.require_agreement(self._card)
            await ctx.reachable(self._endpoint)
            ctx.publish(self._endpoint, self._card)
        self.published()

    def withdraw(self) -> None:
        """Nobody finds it any more; what is open goes on."""
        self._ctx.withdraw(self._endpoint)
        if self._static_key:
            self._ctx.process_context.registry.delete(self._static_key)


class EndpointHost(Actor):
    """An endpoint without a model: any JSON-like value in, any number of them out."""

    mailbox_capacity = 1024

    def __init__(self, place: Place, handler: Handler) -> None:
        self._place, self._handler = place, handler

    async def started(self) -> None:
        """Publish the instance. Raises UserError when a static address is taken."""
        self._calls = OpenCalls(self._handler, self.context.task)
        await self._place.publish(self.context.ref)

    @handle
    async def job(self, message: Job) -> None:
        """Start a call of the handler."""
        if isinstance(message.request, Call):
            self._calls.take(message.request, message.reply)
        else:
            what = type(message.request).__name__
            message.reply.failed("BadRequest", f"{self._place.path} takes calls, not {what}")

    def cut(self) -> None:
        """Drain no longer."""
        self._calls.cut()

    async def drained(self) -> None:
        """Leave the registry, and wait for the calls that are open."""
        self._place.withdraw()
        await self._calls.idle()

    async def stopping(self, reason: Reason) -> None:
        """Leave the registry; callers of what is open get an error."""
        self._place.withdraw()
        if hasattr(self, "_calls"):
            self._calls.fail(f"{self._place.path} ended ({reason})")

    def inspection(self) -> dict[str, Any]:
        """Calls so far and now."""
        return {"handler": self._handler.name, "calls": self._calls.begun, "running": len(self._calls)}


class ModelHost(Worker):
    """An endpoint with a model: a worker like those that ship. It takes calls of Python processes, too."""

    def __init__(self, place: Place, handler: Handler, card: ModelCard, block_registry: BlockRegistry) -> None:
        self._place, self._handler = place, handler
        engine = ServedTokens if card.kind == "tokens" else ServedText

        def make(options: EngineOptions, spawn: Spawn) -> Engine[Any]:
            return engine(options, spawn, handler, card, block_registry)

        super().__init__(make, EngineOptions(name=card.name), lambda _card: None, place.withdraw)

    async def started(self) -> None:
        """Publish the instance and its card. Raises UserError when the model's name is taken."""
        await super().started()
        self._calls = OpenCalls(self._handler, self.context.task)
        await self._place.publish(self.context.ref)

    @handle
    async def job(self, message: Job) -> None:
        """Start what is asked for."""
        if isinstance(message.request, Call):
            self._calls.take(message.request, message.reply)
        else:
            await super().job(message)

    def cut(self) -> None:
        """Drain no longer."""
        self._calls.cut()
        self._idle.set()

    async def drained(self) -> None:
        """See Worker."""
        await super().drained()
        await self._calls.idle()

    async def stopping(self, reason: Reason) -> None:
        """See Worker."""
        await super().stopping(reason)
        if hasattr(self, "_calls"):
            self._calls.fail(f"{self._place.path} ended ({reason})")
