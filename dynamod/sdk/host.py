"""The actors behind endpoints, one for each `serve_endpoint`, and a handler with a model as an engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dynamod.actor import Actor, Reason, Ref, handle
from dynamod.engine.base import Engine, EngineOptions, Job, RequestT, Spawn
from dynamod.engine.python.engine import PythonEngine, TextEngine, TokenEngine
from dynamod.engine.python.handler import Handler
from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.message.discovery import ModelCard
from dynamod.message.kv_events import Load, WorkerEvent
from dynamod.message.worker import Call, Chat, Generate
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.open_calls import OpenCalls
from dynamod.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Place:
    """Where an endpoint is announced. `published` is called when others can find it."""

    ctx: ComponentContext
    endpoint: str
    card: ModelCard | None
    static: bool
    published: Callable[[], None]

    @property
    def path(self) -> str:
        """The endpoint's address."""
        return str(self.ctx.address(self.endpoint))

    async def publish(self, ref: Ref) -> None:
        """Let others find it. Raises UserError when the model's name, or a static address, is taken."""
        await self.ctx.announce(self.endpoint, ref, self.card, static=self.static)
        self.published()

    def withdraw(self) -> None:
        """Nobody finds it any more; what is open goes on."""
        self.ctx.withdraw(self.endpoint)


class EndpointHost(Actor):
    """An endpoint without a model: any JSON-like value in, any number of them out."""

    mailbox_capacity = 1024

    def __init__(self, place: Place, handler: Handler) -> None:
        self._place, self._handler = place, handler
        self._calls = OpenCalls(place.path, handler, lambda work, name: self.context.task(work, name))

    async def started(self) -> None:
        """Publish the instance. Raises UserError when a static address is taken."""
        await self._place.publish(self.context.ref)

    @handle
    async def job(self, message: Job) -> None:
        """Start a call of the handler."""
        self._calls.take(message)

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
        self._calls.fail(reason)

    def inspection(self) -> dict[str, Any]:
        """Calls so far and now."""
        return {"handler": self._handler.name, "calls": self._calls.begun, "running": len(self._calls)}


class _Served(PythonEngine[RequestT]):
    """What both kinds share: a card that the user has registered, and a ledger of what the user has published."""

    name = "python"

    def __init__(
        self, options: EngineOptions, spawn: Spawn, handler: Handler, card: ModelCard, block_registry: BlockRegistry
    ) -> None:
        super().__init__(options, spawn)
        self.use(handler)
        self._card, self._block_registry = card, block_registry

    async def start(self) -> None:
        """The user's file has loaded whatever there is to load."""

    def load(self) -> Load:
        """What a WorkerMetricsPublisher said last, else what is seen from here."""
        return self._block_registry.load or super().load()


class _ServedTokens(_Served[Generate], TokenEngine):
    """ModelType.Backend."""

    async def start(self) -> None:
        """Raises UserError when what is published has blocks of another size than the card."""
        self._block_registry.serve(self._card.name, self._card.kv_cache_block_size, self.publish)

    async def close(self) -> None:
        self._block_registry.leave(self.publish)
        await super().close()

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        return (*self._block_registry.snapshot(), self.load())

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int] | None:
        return self._block_registry.footprint(request.token_ids + request.prior_output)


class _ServedText(_Served[Chat], TextEngine):
    """ModelType.Chat and ModelType.Completion."""


class ModelHost(Worker):
    """An endpoint with a model: a worker like those that ship. It takes calls of Python processes, too."""

    def __init__(self, place: Place, handler: Handler, card: ModelCard, block_registry: BlockRegistry) -> None:
        self._place = place
        self._calls = OpenCalls(place.path, handler, lambda work, name: self.context.task(work, name))
        engine = _ServedTokens if card.kind == "tokens" else _ServedText

        def make(options: EngineOptions, spawn: Spawn) -> Engine[Any]:
            return engine(options, spawn, handler, card, block_registry)

        super().__init__(make, EngineOptions(name=card.name), lambda _card: None, place.withdraw)

    async def started(self) -> None:
        """Publish the instance and its card. Raises UserError when the model's name is taken."""
        await super().started()
        await self._place.publish(self.context.ref)

    @handle
    async def job(self, message: Job) -> None:
        """Start what is asked for."""
        if isinstance(message.request, Call):
            self._calls.take(message)
        else:
            await super().job(message)

    def cut(self) -> None:
        """Drain no longer."""
        self._calls.cut()
        self._idle.set()

    async def drained(self) -> None:
        """Leave the registry, and wait for requests and calls that are open."""
        await super().drained()
        await self._calls.idle()

    async def stopping(self, reason: Reason) -> None:
        """Leave the registry; what is open gets an error, or goes elsewhere."""
        await super().stopping(reason)
        self._calls.fail(reason)
