"""Clients of components: what `depends(Other)` becomes in a running service."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dynamod.actor import Stream
from dynamod.discovery.keys import Address
from dynamod.discovery.view import View
from dynamod.engine.python.plain import plain
from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed, Overloaded
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.worker import Call
from dynamod.transport.base import Sink

from .context import ProcessContext

WAIT_FOR_INSTANCE = 30.0
"""Seconds a call waits for the first instance: components of a graph start at the same time."""


class EndpointClient:
    """`async for item in client(request)`. Instances take turns."""

    def __init__(self, process_context: ProcessContext, address: Address) -> None:
        self._process_context = process_context
        self._address = str(address)
        self._turn = itertools.count()

    def __call__(self, request: Any = None) -> AsyncIterator[Any]:
        """Call the endpoint and yield what it yields."""
        return self._stream(request)

    def _ready(self, view: View) -> dict[int, Instance]:
        return {number: one for number, one in view.instances(self._address).items() if one.state == "ready"}

    async def _stream(self, request: Any) -> AsyncIterator[Any]:
        view = self._process_context.view
        try:
            async with asyncio.timeout(WAIT_FOR_INSTANCE):
                while not (live := self._ready(view)):  # noqa: ASYNC110 - the view has no event per path
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise Overloaded(f"no instance of {self._address} after {WAIT_FOR_INSTANCE:g} s") from None
        ids = sorted(live)
        instance = live[ids[next(self._turn) % len(ids)]]
        sink = _Sink(self._address)
        outbound = self._process_context.mail.open(instance, Call(uuid.uuid4().hex, plain(request)), sink)
        try:
            while items := await sink.stream.read():
                for item in items:
                    yield item
        finally:
            outbound.cancel()


class _Sink(Sink):
    def __init__(self, address: str) -> None:
        self._address = address
        self.stream: Stream[Any] = Stream()

    def delta(self, delta: Delta) -> None:
        match delta:
            case Items(_, offset, items, finish):
                self.stream.push(offset, items)
                if finish is not None:
                    self.stream.end(finish)
            case Failed():
                self.stream.fail(delta.exception())
            case _:
                pass

    def lost(self, why: str) -> None:
        self.stream.fail(EngineFailed(f"{self._address}: {why}"))


class ServiceClient:
    """All endpoints of a dependency as attributes: `self.worker.generate(request)`."""

    def __init__(self, process_context: ProcessContext, dependency: Mapping[str, Any]) -> None:
        self._service = dependency["service"]
        place = dependency["namespace"], dependency["component"]
        self._endpoints = {
            name: EndpointClient(process_context, Address(*place, name)) for name in dependency["endpoints"]
        }

    def __getattr__(self, name: str) -> EndpointClient:
        client = self._endpoints.get(name)
        if client is None:
            known = ", ".join(sorted(self._endpoints)) or "none"
            raise AttributeError(f"{self._service} has no endpoint '{name}'; it has: {known}")
        return client

    def __getitem__(self, name: str) -> EndpointClient:
        """An endpoint whose name is no identifier, such as `chat/completions`."""
        return self.__getattr__(name)
