"""The worker actor: owns one engine, takes requests from its mailbox, publishes the model."""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason, handle
from dynamod.message.registry import ModelCard
from dynamod.message.worker import Chat, Generate
from dynamod.post.base import Reply

from .base import Engine, EngineOptions, EngineStatistics, Job, Spawn

log = logging.getLogger("dynamod.engine")

Make = Callable[[EngineOptions, Spawn], Engine]


class WorkerStatistics(msgspec.Struct, frozen=True):
    """Requests taken, open now, cancelled by their readers, refused; and the engine's own."""

    accepted: int
    open: int
    cancelled: int
    refused: int
    engine: EngineStatistics


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
        self._replies: set[Reply] = set()
        self._accepted = self._cancelled = self._refused = 0

    async def started(self) -> None:
        """Load the engine, then tell the world."""
        self._engine = self._make(self._options, self.context.task)
        await self._engine.start()
        card = self._engine.card()
        log.info("engine %s serves model %s", self._engine.name, card.name)
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
            for reply in list(self._replies):
                reply.failed("EngineFailed", f"the worker ended ({reason})", retry=True)

    @handle
    async def job(self, message: Job) -> None:
        """Hand a request to the engine."""
        assert self._engine is not None
        request, reply = message.request, message.reply
        if reply.cancelled:
            return
        wanted = Generate if self._engine.kind == "tokens" else Chat
        if not isinstance(request, Generate | Chat) or not isinstance(request, wanted):
            self._refused += 1
            reply.failed("BadRequest", f"this endpoint takes {wanted.__name__}, not {type(request).__name__}")
            return
        self._accepted += 1
        self._replies.add(reply)
        self._idle.clear()
        reply.on_end(functools.partial(self._ended, reply))
        reply.accepted()
        try:
            self._engine.submit(request, reply)
        except Exception as error:  # an engine's bug ends this request, not its neighbours
            log.exception("engine %s could not take request %s", self._engine.name, request.request_id)
            reply.failed("EngineFailed", f"{self._engine.name}: {type(error).__name__}: {error}")

    def _ended(self, reply: Reply, cancelled: bool) -> None:
        self._replies.discard(reply)
        self._cancelled += cancelled
        if not self._replies:
            self._idle.set()

    def statistics(self) -> WorkerStatistics:
        """A snapshot of the worker."""
        engine = self._engine.statistics() if self._engine is not None else EngineStatistics()
        return WorkerStatistics(self._accepted, len(self._replies), self._cancelled, self._refused, engine)

    def inspection(self) -> dict[str, Any]:
        """The worker's statistics."""
        facts: dict[str, Any] = msgspec.to_builtins(self.statistics())
        return facts
