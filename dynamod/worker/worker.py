"""The worker actor: owns one engine, takes requests from its mailbox, publishes the model, tells routers the news."""

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason, handle
from dynamod.engine.base import Engine, EngineOptions, EngineStatistics, Job, Spawn
from dynamod.message.discovery import ModelCard
from dynamod.message.kv_events import Cleared, Load, PrefillCompleted, RequestFinished, RequestStarted, WorkerEvent
from dynamod.message.worker import Chat, Describe, Files, Generate, Subscribe
from dynamod.transport.base import Reply

from .events import EventPublisher
from .model_files import send_files

log = logging.getLogger("dynamod.engine")

Make = Callable[[EngineOptions, Spawn], Engine]


LOAD_EVERY = 0.25
"""Seconds between two looks at the engine's load, while somebody reads the feed."""

SIGN_EVERY = 2.0
"""Seconds after which the load is told although it has not changed: readers take a silent feed for a broken one."""


class WorkerStatistics(msgspec.Struct, frozen=True):
    """Requests taken, open now, cancelled by their readers, refused; readers of the feed; and the engine's own."""

    accepted: int
    open: int
    cancelled: int
    refused: int
    feeds: int
    engine: EngineStatistics


@dataclass(slots=True)
class _Open:
    """A request in the engine's hands, as the feed tells of it."""

    began: RequestStarted
    computed: bool = False


class Worker(Actor):
    """`publish(card)` is called when the engine is loaded, `withdraw()` when the worker drains or ends."""

    mailbox_capacity = 1024

    def __init__(
        self,
        make: Make,
        options: EngineOptions,
        publish: Callable[[ModelCard], None],
        withdraw: Callable[[], None],
    ) -> None:
        self._make = make
        self._options = options
        self._publish = publish
        self._withdraw = withdraw
        self._engine: Engine | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._open: dict[Reply, _Open] = {}
        self._feeds = EventPublisher()
        self._watching = False
        self._told: Load | None = None
        self._accepted = self._cancelled = self._refused = 0

    async def started(self) -> None:
        """Load the engine, then tell the world."""
        self._engine = engine = self._make(self._options, self.context.task)
        engine.tell, engine.computed = self._feeds.tell, self._computed
        await engine.start()
        card = engine.card()
        log.info("engine %s serves model %s", engine.name, card.name)
        self._publish(card)

    async def drained(self) -> None:
        """Nobody finds this worker any more; wait for the streams that are open."""
        self._withdraw()
        await self._idle.wait()

    async def stopping(self, reason: Reason) -> None:
        """Leave the registry, free the engine, and let who still waits for an answer go elsewhere."""
        self._withdraw()
        try:
            if self._engine is not None:
                await self._engine.close()
        finally:
            why = f"the worker ended ({reason})"
            for reply in list(self._open):
                reply.failed("EngineFailed", why, retry=True)
            self._feeds.close(why)

    @handle
    async def job(self, message: Job) -> None:
        """Hand a request to the engine, or open a feed."""
        assert self._engine is not None
        request, reply = message.request, message.reply
        if reply.cancelled:
            return
        if isinstance(request, Subscribe):
            self._subscribe(self._engine, reply)
            return
        if isinstance(request, Describe):
            reply.accepted()
            reply.items((msgspec.json.encode(self._engine.card()),), "stop")
            return
        if isinstance(request, Files):
            self.context.task(send_files(self._engine.card(), request, reply), "files")
            return
        wanted = Generate if self._engine.kind == "tokens" else Chat
        if not isinstance(request, Generate | Chat) or not isinstance(request, wanted):
            self._refused += 1
            reply.failed("BadRequest", f"this endpoint takes {wanted.__name__}, not {type(request).__name__}")
            return
        self._accepted += 1
        began = RequestStarted(self._accepted, (), 0)
        try:
            footprint = self._engine.footprint(request)
            if footprint is not None:
                began = RequestStarted(self._accepted, *footprint)
            self._begin(reply, began)
            self._engine.submit(request, reply)
        except Exception as error:  # an engine's bug ends this request, not its neighbours
            log.exception("engine %s could not take request %s", self._engine.name, request.request_id)
            reply.failed("EngineFailed", f"{self._engine.name}: {type(error).__name__}: {error}")

    def _begin(self, reply: Reply, began: RequestStarted) -> None:
        self._open[reply] = _Open(began)
        self._idle.clear()
        self._feeds.tell(began, reply.origin)
        reply.on_end(functools.partial(self._ended, reply))
        reply.accepted()

    def _computed(self, reply: Reply) -> None:
        """The engine has a request's first token."""
        request = self._open.get(reply)
        if request is not None and not request.computed:
            request.computed = True
            self._feeds.tell(PrefillCompleted(request.began.request), reply.origin)

    def _ended(self, reply: Reply, cancelled: bool) -> None:
        request = self._open.pop(reply)
        self._feeds.tell(RequestFinished(request.began.request), reply.origin)
        self._cancelled += cancelled
        if not self._open:
            self._idle.set()

    def _subscribe(self, engine: Engine, reply: Reply) -> None:
        """Open a feed: first how things stand, with the requests of others. It is no open request: drain ends it."""
        first: list[WorkerEvent] = [Cleared(), *engine.snapshot()]
        for other, request in self._open.items():
            if other.origin is not reply.origin:
                first.append(request.began)
                if request.computed:
                    first.append(PrefillCompleted(request.began.request))
        self._feeds.open(reply, tuple(first))
        self._told = None  # readers may have been told different loads: the next look tells all
        if not self._watching:
            self._watching = True
            self.context.task(self._watch(engine), "load")

    async def _watch(self, engine: Engine) -> None:
        """Tell the load when it has changed, and now and then as a sign of life, until nobody reads any more."""
        looks = 0  # since it was told
        while self._feeds:
            await asyncio.sleep(LOAD_EVERY)
            looks += 1
            load = engine.load()
            if load != self._told or looks * LOAD_EVERY >= SIGN_EVERY:
                self._told, looks = load, 0
                self._feeds.tell(load)
        self._watching = False

    def in_step(self) -> tuple[float, int] | None:
        """Seconds since the engine's step began and the tokens it computes; None between steps."""
        if self._engine is None:
            return None
        now = self._engine.statistics()
        return None if now.in_step_for is None else (now.in_step_for, now.step_tokens)

    def statistics(self) -> WorkerStatistics:
        """A snapshot of the worker."""
        engine = self._engine.statistics() if self._engine is not None else EngineStatistics()
        return WorkerStatistics(
            self._accepted, len(self._open), self._cancelled, self._refused, len(self._feeds), engine
        )

    def inspection(self) -> dict[str, Any]:
        """The worker's statistics."""
        facts: dict[str, Any] = msgspec.to_builtins(self.statistics())
        return facts
