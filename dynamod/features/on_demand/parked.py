"""Models that can be asked for although no worker serves them: a planner starts workers while requests wait."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from dynamod.discovery.keys import PARKED, wanted_key
from dynamod.discovery.records import decoded
from dynamod.discovery.view import View
from dynamod.extension.installed import helpers_of
from dynamod.ingress.base import Job, ResponseSink, Run
from dynamod.ingress.parts import Begin, ProcessorContext, ProcessorPart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import Overloaded
from dynamod.message.pools import ParkedModel, WantedModel

log = logging.getLogger("dynamod.frontend")

GRACE = 30.0
"""Seconds for which a model stays although its planner has gone: another planner may take over."""


def has_worker(view: View, card: ModelCard) -> bool:
    """Whether a worker serves the model, or the model below an adapter."""
    return bool(view.served(card.base, None if card.parent else card, "").instances)


class ParkedModels(ProcessorPart):
    """Models that planners start workers for: requests wait for a worker. Planners put records into the registry.

    `want(model, waits)` publishes that requests wait for a model, or that none waits any more.
    """

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._view, self.want = context.view, self._publish
        self._records: dict[str, ParkedModel] = {}  # by key
        self._models: dict[str, ParkedModel] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Event()
        context.watch(self._changed.set)

    async def prepare(self) -> None:
        """Follow the records of planners, but not where the processor serves one address only."""
        if self.context.link is not None and self._view.only is None:
            self.context.link.watch(PARKED, self.record)

    def record(self, key: str, value: bytes | None) -> None:
        """What stands at a key of the registry now."""
        before = self._records.pop(key, None)
        if (record := decoded(key, value, ParkedModel)) is not None:
            self._records[key] = record
        for name in {one.card.name for one in (before, record) if one is not None}:
            self._revise(name)
        self._changed.set()
        self.context.revise()

    def _revise(self, name: str) -> None:
        found = next((one for one in self._records.values() if one.card.name == name), None)
        if found is not None:
            if (leaving := self._leaving.pop(name, None)) is not None:
                leaving.cancel()
            elif name not in self._models:
                self.context.keep(found.card)
            self._models[name] = found
        elif name in self._models and name not in self._leaving:
            self._leaving[name] = self.context.spawn(self._leave(name), f"planner of {name}")

    async def _leave(self, name: str) -> None:
        await asyncio.sleep(GRACE)
        del self._leaving[name], self._models[name]
        self._changed.set()
        self.context.forget(name)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def places(self, names: Collection[str]) -> set[str]:
        """Where planners start workers of these models: dyn://..."""
        return {record.place for name, record in self._models.items() if name in names and not record.problem}

    def can_start(self, name: str) -> bool:
        """False: the planner of the model starts no worker now."""
        record = self._models.get(name)
        return record is None or not record.problem

    def starts(self, card: ModelCard) -> bool:
        """Whether no worker serves the model, or the model below an adapter, and one starts for requests that wait."""
        record = self._models.get(card.base) if self._models else None
        return record is not None and not record.problem and not has_worker(self._view, card)

    @contextmanager
    def wanted(self, name: str) -> Generator[None]:
        """Let the planner know meanwhile that a request waits for the model."""
        self._waiting[name] += 1
        if self._waiting[name] == 1:
            self.want(name, True)
        try:
            yield
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]
                self.want(name, False)

    def _publish(self, name: str, waits: bool) -> None:
        link = self.context.link
        if link is not None and waits:
            link.put(wanted_key(link.lease, name), msgspec.json.encode(WantedModel(name)))
        elif link is not None:
            link.delete(wanted_key(link.lease, name))

    def start(self, job: Job, sink: ResponseSink, begin: Begin) -> Awaitable[Run]:
        """Wait until the model has the workers that the request needs, if the request can be served."""
        return self._with_workers(job, sink, begin) if self._models else begin(job, sink)

    async def _with_workers(self, job: Job, sink: ResponseSink, begin: Begin) -> Run:
        cards = self.context.cards()
        asked = cards.get(job.request.model)
        card = cards.get(asked.base) if asked is not None and asked.base in self else None
        if card is not None:
            if not self._view.served(card.name, card, "").instances:
                await self.context.check(job)
                await self.served(card, "", self.context.queue_timeout)
            card = self.context.cards().get(card.name, card)  # that of the worker
            for pool in helpers_of(card.capabilities):
                await self.served(card, pool, self.context.queue_timeout)
        return await begin(job, sink)

    @asynccontextmanager
    async def held(self, model: str) -> AsyncGenerator[None]:
        """Wait until the model has a worker."""
        if model in self and (card := self.context.cards().get(model)) is not None:
            await self.served(card, "", self.context.queue_timeout)
        yield

    async def load_model(self, model: str, keep_alive: float | str | None = None) -> bool:
        """Wait until the model has a worker; the planner alone decides how long the worker stays."""
        if model not in self:
            return False
        async with self.held(model):
            return True

    async def served(self, card: ModelCard, pool: str, timeout: float | None) -> None:
        """Return when a worker serves the model in this pool, at once where no planner starts workers for it.

        `timeout`: seconds. Raises Overloaded when no worker is ready by then, or the planner starts none.
        """
        name, now = card.name, asyncio.get_running_loop().time
        if name not in self._models or self._view.served(name, card, pool).instances:
            return
        since = now()
        try:
            async with asyncio.timeout(timeout):
                with self.wanted(name):
                    while not self._view.served(name, card, pool).instances:
                        if (record := self._models.get(name)) is None:
                            return  # no planner starts a worker any more
                        if record.problem:
                            why = f"model {name!r} has no workers, and none is started: {record.problem}"
                            raise Overloaded(why, retry_after=max(1.0, record.startup))
                        self._changed.clear()
                        await self._changed.wait()
        except TimeoutError:
            took, record = now() - since, self._models.get(name)
            why = f"no worker of model {name!r} was ready within {timeout:g} s"
            raise Overloaded(why, retry_after=max(1.0, record.startup - took if record is not None else 1.0)) from None
