"""A message that is echoed, and keys of the registry that are followed."""

import asyncio
import logging
from typing import ClassVar

import msgspec

from dynamod.discovery.keys import INSTANCES
from dynamod.message.errors import BadRequest
from dynamod.transport.base import Reply
from dynamod.worker.parts import WorkerContext, WorkerPart

log = logging.getLogger("dynamod.worker")


class Visit(msgspec.Struct, frozen=True):
    request_id: str
    guest: str


class VisitsOfWorker(WorkerPart):
    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.instances: set[str] = set()
        self.guests: list[str] = []
        self._changed = asyncio.Event()

    async def visit(self, request: Visit, reply: Reply) -> None:
        if not request.guest:
            raise BadRequest("`guest` is empty", param="guest")
        if request.guest == "nobody":
            raise KeyError(request.guest)
        self.guests.append(request.guest)
        self.context.publish()
        reply.items((f"{self.context.engine.name}: {request.guest}".encode(),), "stop")

    messages: ClassVar = {Visit: visit}

    async def prepare(self) -> None:
        await self.context.follow(INSTANCES, self._seen)
        log.info("toy: before the announcement there are %d instances", len(self.instances))

    def _seen(self, key: str, _value: bytes | None) -> None:
        self.instances.add(key)
        self._changed.set()

    async def run(self) -> None:
        await self._changed.wait()
        log.info("toy: behind the announcement there are instances")
