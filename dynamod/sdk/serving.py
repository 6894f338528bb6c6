"""One endpoint from its start to its end: its actor, and for an endpoint with a model the engine around its handler."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamod.actor import Actor, ActorUnreachable, Crashed, Reason, Ref, Supervisor, handle
from dynamod.discovery.base import Watcher
from dynamod.discovery.keys import Address
from dynamod.engine.base import Engine, EngineOptions, Job, RequestT, Spawn
from dynamod.engine.batching.steps import NOTHING
from dynamod.engine.python.engine import PythonEngine, TextEngine, TokenEngine, card_of
from dynamod.engine.python.handler import Handler
from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.kv_events import ForwardPass, Load, WorkerEvent
from dynamod.message.worker import Call, Chat, Embed, Generate
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.open_calls import OpenCalls
from dynamod.runtime.plan import ServicePlan
from dynamod.transport.base import Reply
from dynamod.worker.worker import RequestHandler, Worker

from .connection import Connection

if TYPE_CHECKING:
    from .runtime import DistributedRuntime

log = logging.getLogger("dynamod.python")

LINGER = 0.1
"""Seconds that an endpoint still takes requests once it has left the registry: not all processes know that yet."""
IDLE = 1.0
"""Seconds after which a rank of an engine that has reported no step is idle."""
STOP = 3.0
"""Seconds that an endpoint has to end once nothing is waited for any more."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an endpoint is announced. `published` is called when others can find it."""

    ctx: ComponentContext
    endpoint: str
    card: ModelCard | None
    static: bool
    published: Callable[[], None]

    @property
    def path(self) -> str:
        return str(self.ctx.address(self.endpoint))

    async def publish(self, ref: Ref) -> None:
        """Let others find it. Raises UserError when the model's name, or a static address, is taken."""
        await self.ctx.announce(self.endpoint, ref, self.card, static=self.static)
        self.published()

    def withdraw(self) -> None:
        self.ctx.withdraw(self.endpoint)


class EndpointHost(Actor):
    """An endpoint without a model: any JSON-like value in, any number of them out."""

    mailbox_capacity = 1024

    def __init__(self, place: _Place, handler: Handler) -> None:
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
        self._steps: dict[int, tuple[float, ForwardPass]] = {}  # by rank, with when it was
        self._computed = self._due = 0  # tokens, as those of `StepClock`

    async def start(self) -> None:
        """The user's file has loaded whatever there is to load."""
        self._block_registry.stepped.add(self._take_step)

    async def close(self) -> None:
        self._block_registry.stepped.discard(self._take_step)
        await super().close()

    def _take_step(self, step: ForwardPass) -> None:
        self._steps[step.dp_rank] = asyncio.get_running_loop().time(), step
        scheduled = step.scheduled_requests
        self._computed += (scheduled.sum_prefill_tokens or 0) + (scheduled.num_decode_requests or 0)
        if self.stepped is not None and self._computed >= self._due:
            self._due = self._computed + self.stepped(step.dp_rank)

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """What a FpmDirectPublisher said last."""
        if rank not in self._steps:
            return None
        since, step = self._steps[rank]
        old = asyncio.get_running_loop().time() - since > IDLE
        return ForwardPass(step.counter_id, 0.0, NOTHING, dp_rank=rank) if old else step

    def load(self) -> Load:
        """What a WorkerMetricsPublisher said last, else what is seen from here."""
        return self._block_registry.load or super().load()


class _ServedTokens(_Served[Generate], TokenEngine):
    """ModelType.Backend."""

    async def start(self) -> None:
        """Raises UserError when what is published has blocks of another size than the card."""
        await super().start()
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


class _ServedVectors(_Served[Embed]):
    """ModelType.Embedding."""

    serves = (Embed,)

    def use(self, handler: Handler) -> None:
        self.embed_with(handler)

    def submit(self, request: Embed, reply: Reply) -> None:
        self._embed(request, reply)


class ModelHost(Worker):
    """An endpoint with a model: a worker like the shipped ones. It takes calls of Python processes, too."""

    def __init__(self, place: _Place, handler: Handler, card: ModelCard, block_registry: BlockRegistry) -> None:
        self._place = place
        self._calls = OpenCalls(place.path, handler, lambda work, name: self.context.task(work, name))
        engine: type[_Served[Any]] = _ServedTokens if card.kind == "tokens" else _ServedText
        if card.types == ("embeddings",):
            engine = _ServedVectors

        def make(options: EngineOptions, spawn: Spawn) -> Engine[Any]:
            return engine(options, spawn, handler, card, block_registry)

        super().__init__(make, EngineOptions(name=card.name), lambda _card: None, place.withdraw)

    async def started(self) -> None:
        """Publish the instance and its card. Raises UserError when the model's name is taken."""
        await super().started()
        await self.prepare_parts()
        await self._place.publish(self.context.ref)
        self.start_parts()

    async def follow(self, prefix: str, watcher: Watcher) -> None:
        """Of the registry of the node."""
        await self._place.ctx.process_context.caught_up(prefix, watcher)

    def handlers(self, engine: Engine[Any]) -> dict[type, RequestHandler]:
        """As every worker, and calls."""
        return {**super().handlers(engine), Call: self._call}

    def _call(self, _engine: Engine[Any], request: Call, reply: Reply) -> None:
        self._calls.take(Job(request, reply))

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


async def serve(
    runtime: "DistributedRuntime",
    connection: Connection,
    address: Address,
    function: Callable[..., Any],
    card: ModelCard | None,
    *,
    graceful: bool,
) -> None:
    """Serve until the runtime ends; see runtime.Endpoint.serve_endpoint."""
    if runtime.ended:
        return
    handler = Handler(function)
    card = card_of(card, handler) if card is not None and card.types != ("embeddings",) else card
    where, process_context = str(address), connection.process_context
    if address in connection.shown.states:
        raise UserError(f"dyn://{where} is served by this process already", "choose another endpoint")
    wake, ready, grace = asyncio.Event(), False, 0.0

    def end(seconds: float) -> None:
        nonlocal grace
        grace = seconds
        wake.set()

    def published() -> None:
        nonlocal ready
        ready = True
        log.info("serving dyn://%s%s", where, f" with model {card.name}" if card is not None else "")
        connection.shown.show(address, "Ready")

    service = ServicePlan(address.component, {"namespace": address.namespace, "component": address.component})
    place = _Place(
        ComponentContext(process_context, service),
        address.endpoint,
        card,
        static=runtime.is_static,
        published=published,
    )
    host: EndpointHost | ModelHost = (
        EndpointHost(place, handler)
        if card is None
        else ModelHost(place, handler, card, connection.block_registry(address.namespace, address.component))
    )
    name = f"{address.namespace}.{address.endpoint}".replace("/", "%2F")  # a slash is for the children of an actor
    forget = runtime.on_end(end)
    connection.cuts[host.cut] = None
    connection.shown.show(address, "Starting")
    supervisor: Supervisor | None = None
    try:
        supervisor = await connection.supervisor(address.component)
        ref = process_context.system.start(name, lambda: host, under=supervisor, restart="temporary", shutdown=STOP)
        process_context.system.watch(ref, lambda _notice: wake.set())
        await wake.wait()
        cell = process_context.system.cell(ref)
        if cell is None:
            raise _error(process_context.system.reason_of(ref), where)
        if ready and graceful and grace > 0:
            connection.shown.show(address, "Draining")
            timer = asyncio.get_running_loop().call_later(grace, _cut, host, where)
            try:
                place.withdraw()
                await asyncio.sleep(min(grace, LINGER))
                await supervisor.stop_child(name, drain=True, timeout=grace + STOP)
            finally:
                timer.cancel()
    finally:
        if supervisor is not None:
            await supervisor.stop_child(name)
        process_context.endpoints.remove(where)
        connection.cuts.pop(host.cut, None)
        forget()
        connection.shown.show(address, "")


def _cut(host: EndpointHost | ModelHost, where: str) -> None:
    log.warning("dyn://%s: what is still open is cut", where)
    host.cut()


def _error(reason: Reason | None, where: str) -> Exception:
    if isinstance(reason, Crashed) and isinstance(reason.error, Exception):
        return reason.error
    return ActorUnreachable(f"dyn://{where} ended ({reason})")
