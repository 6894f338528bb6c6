"""Visitors may ask for the adapter `visitor` of each model that has no workers, and wait until it has one."""

from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from dynamod.ingress.base import Job, ResponseSink, Run
from dynamod.ingress.parts import Begin, ProcessorContext, ProcessorPart
from dynamod.message.discovery import Adapter, ModelCard


class VisitsOfProcessor(ProcessorPart):
    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self.prepared = self.open = self.shut = False
        self.waiting: list[str] = []

    async def prepare(self) -> None:
        self.prepared = True

    def admit(self) -> None:
        self.open = True
        self.context.revise()

    def starts(self, card: ModelCard) -> bool:
        return not self.context.view.served(card.base).instances

    def can_start(self, name: str) -> bool:
        return not self.shut

    def places(self, names: Collection[str]) -> Collection[str]:
        return {f"dyn://n.{name}.generate" for name in names}

    @contextmanager
    def wanted(self, name: str) -> Generator[None]:
        self.waiting.append(name)
        try:
            yield
        finally:
            self.waiting.remove(name)

    @asynccontextmanager
    async def held(self, model: str) -> AsyncGenerator[None]:
        with self.wanted(model):
            await self.context.view.until(lambda: self.context.view.served(model).instances)
        yield

    async def start(self, job: Job, sink: ResponseSink, begin: Begin) -> Run:
        async with self.held(job.request.model):
            return await begin(job, sink)

    def starting_card(self, card: ModelCard) -> ModelCard:
        more = (Adapter("visitor", "/visitor"),) if self.open else ()
        return msgspec.structs.replace(card, adapters=(*card.adapters, *more))
