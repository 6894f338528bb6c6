"""Adapters in a worker: the ones that clients have the worker load, and the ones that clients have loaded elsewhere."""

import asyncio
import logging
from typing import ClassVar

import msgspec

from dynamod.engine.adapters import AdapterManager, not_loaded
from dynamod.engine.capabilities import LoadsAdapters
from dynamod.message.errors import BadRequest, RequestError
from dynamod.message.worker import LoadAdapter, UnloadAdapter
from dynamod.transport.base import Reply
from dynamod.worker.parts import WorkerContext, WorkerPart

from .changes import ADAPTERS, AdapterChange, AdapterChanges

log = logging.getLogger("dynamod.worker")


class FollowedAdapters(WorkerPart):
    """Each change is done once, one at a time. The engine's card is published again when it lists other adapters."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._engine = engine = context.engine
        self._adapters = engine.adapters if isinstance(engine, LoadsAdapters) else None
        self._configured = {one.name for one in context.engine.options.lora}
        self._done: dict[str, float] = {}  # by name, when the change was
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self.changes = AdapterChanges()
        self.changes.on_change(self._changed.set)

    async def load(self, request: LoadAdapter, reply: Reply) -> None:
        """Answers with the adapter and its digest. Raises RequestError."""
        if self._adapters is None:
            text = f"engine {self._engine.name}, as it has been started, loads no LoRA adapters"
            raise BadRequest(text, param="lora_name")
        async with self._lock:
            found = await self._adapters.load(request.adapter, inplace=request.inplace)
            self._tell()
        reply.items((msgspec.json.encode(found),), "stop")

    async def unload(self, request: UnloadAdapter, reply: Reply) -> None:
        """Raises RequestError."""
        if self._adapters is None:
            raise not_loaded(request.name)
        async with self._lock:
            await self._adapters.unload(request.name)
            self._tell()
        reply.items((), "stop")

    messages: ClassVar = {LoadAdapter: load, UnloadAdapter: unload}

    def _tell(self) -> None:
        self.context.publish()
        log.info("adapters now: %s", ", ".join(one.name for one in self._engine.card().adapters) or "none")

    async def prepare(self) -> None:
        """Load what clients have loaded before: no request finds the worker without them."""
        if self._adapters is not None:
            await self.context.follow(ADAPTERS, self.changes.record)
            await self.follow()

    async def run(self) -> None:
        """Follow what clients load elsewhere."""
        while self._adapters is not None:
            await self._changed.wait()
            self._changed.clear()
            await self.follow()

    async def follow(self) -> None:
        """Do what is new."""
        async with self._lock:
            if self._adapters is not None and await self._catch_up(self._adapters):
                self.context.publish()

    async def _catch_up(self, adapters: AdapterManager) -> bool:
        """Have the engine know what is new; returns whether its card lists others now."""
        before = self._engine.card().adapters
        while (change := self._next()) is not None:
            self._done[change.adapter.name] = change.at
            try:
                await self._do(adapters, change)
            except RequestError as error:
                what = "load" if change.loaded else "unload"
                log.warning("cannot %s the adapter %s: %s", what, change.adapter.name, error)
        return self._engine.card().adapters != before

    def _next(self) -> AdapterChange | None:
        found = self.changes.of(self._engine.card().name)
        return next((one for one in found if one.at > self._done.get(one.adapter.name, float("-inf"))), None)

    async def _do(self, adapters: AdapterManager, change: AdapterChange) -> None:
        """Raises RequestError."""
        wanted = change.adapter
        if change.loaded:
            found = await adapters.load(wanted, inplace=True)
            if wanted.digest and found.digest != wanted.digest:
                log.warning("the adapter %s has other files here than where it was loaded first", wanted.name)
        elif wanted.name not in self._configured and any(
            one.name == wanted.name for one in self._engine.card().adapters
        ):
            await adapters.unload(wanted.name)
