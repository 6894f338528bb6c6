"""One call of an endpoint: where it goes, its items, and its end from either side."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator
from typing import Any, Self

from dynamod.actor import StreamGap
from dynamod.engine.python.context import Context
from dynamod.message.discovery import Instance
from dynamod.message.errors import Overloaded, RequestError, TimedOut
from dynamod.message.ingress import Delta, Failed, Items, Text, Tokens
from dynamod.message.worker import Request
from dynamod.transport.base import Outbound, Transport
from dynamod.transport.items import ItemStream
from dynamod.transport.waiting import comes

from .builtin import Answer

log = logging.getLogger("dynamod.python")

ACCEPT = 30.0
"""Seconds for an instance to take a call. How long it works on it then is its own business."""


class Annotated:
    """One item of an answer. Errors are raised, and items carry no more than their data."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def data(self) -> Any:
        """What the handler yielded."""
        return self._data

    def event(self) -> str | None:
        """Name of an event; None: it is plain data."""
        return None

    def comments(self) -> list[str] | None:
        """Comments alongside the data: none."""
        return None

    def id(self) -> str | None:
        """Id of the item: none."""
        return None

    def is_error(self) -> bool:
        """Whether it stands for an error."""
        return False

    def __repr__(self) -> str:
        return f"Annotated(data={self._data!r})"


class Answers:
    """What a call gives: `async for item in await client.random(request)`; the `await` may be left out.

    The request is sent at the `await`, or when the first item is asked for.
    """

    def __init__(self, call: "CallOut", annotated: bool) -> None:
        self._call, self._annotated = call, annotated
        self._items: AsyncGenerator[Any, None] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        self._call.send()
        yield from ()
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._items is None:
            self._items = self._call.items()
        item = await anext(self._items)
        return Annotated(item) if self._annotated else item

    async def aclose(self) -> None:
        """Leave: the handler is told to stop. Also done when the context of the call is stopped."""
        self._call.leave()
        if self._items is not None:
            await self._items.aclose()

    def __del__(self) -> None:
        self._call.forgotten()


class _Sink(ItemStream):
    """Deltas of every kind as items. `taken` is set with the first one; `refused`: another instance may take it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where, self._answer, self._count = where, Answer(), 0
        self.taken = asyncio.Event()
        self.refused = False

    def delta(self, delta: Delta) -> None:
        self.taken.set()
        if isinstance(delta, Failed):
            self.refused = delta.retry
        if isinstance(delta, Tokens | Text):
            try:
                item = self._answer.item(delta)
            except StreamGap as gap:
                self.lost(str(gap))
                return
            delta = Items(delta.stream, self._count, (item,) if item is not None else (), delta.finish)
            self._count += len(delta.items)
        super().delta(delta)

    def lost(self, why: str) -> None:
        super().lost(f"{self._where}: {why}")
        self.taken.set()

    def leave(self) -> None:
        """Nothing is wanted any more."""
        self.end()
        self.taken.set()

    async def read(self) -> list[Any]:
        if not self.taken.is_set() and not await comes(self.taken, ACCEPT):
            raise TimedOut(f"{self._where} did not take the call within {ACCEPT:g} s")
        return await super().read()


Pick = Callable[[Collection[int]], Instance]
"""An instance that is not among those tried. Raises Overloaded."""


class CallOut:
    """One request: sent again to another instance as long as none has begun with it."""

    def __init__(
        self, transport: Transport, request: Callable[[Instance], Request], pick: Pick, context: Context, *, again: bool
    ) -> None:
        self._transport, self._request, self._pick = transport, request, pick
        self._context, self._again = context, again
        self._tried: set[int] = set()
        self._sink: _Sink | None = None
        self._outbound: Outbound | None = None
        self.instance: Instance | None = None  # where it is now
        self._left = False
        self._loop = asyncio.get_running_loop()

    def send(self) -> None:
        """Send it to the next instance. Raises Overloaded when there is none, BadRequest when it cannot take it."""
        if self._sink is not None or self._left:
            return
        instance = self.instance = self._pick(self._tried)
        self._tried.add(instance.instance_id)
        request = self._request(instance)
        sink = self._sink = _Sink(f"{instance.path} ({instance.process or instance.instance_id})")
        self._outbound = self._transport.open(instance, request, sink)
        self._context.on_stop(self.leave)

    def lost(self, why: str) -> None:
        """The instance does not answer any more: it is unknown how much of the call it has done."""
        if self._sink is not None and not self._left:
            self._sink.lost(why)
            self._cancel()

    def leave(self) -> None:
        """The reader has left."""
        self._left = True
        self.instance = None
        self._context.forget(self.leave)
        self._cancel()
        if self._sink is not None:
            self._sink.leave()

    def _cancel(self) -> None:
        outbound, self._outbound = self._outbound, None
        if outbound is not None:
            outbound.cancel()

    def forgotten(self) -> None:
        """The answer has no holder any more; called from wherever that is noticed."""
        if self._outbound is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.leave)

    async def items(self) -> AsyncGenerator[Any, None]:
        """The items. Raises RequestError."""
        try:
            refused: RequestError | None = None
            while not self._left:
                try:
                    self.send()
                except Overloaded:
                    if refused is not None:
                        raise refused from None
                    raise
                assert self._sink is not None
                seen = False
                try:
                    while items := await self._sink.read():
                        for item in items:
                            seen = True
                            yield item
                    return
                except RequestError as error:
                    if seen or not self._again or not self._sink.refused:
                        raise
                    refused = error
                log.debug("call %s is made again elsewhere: %s", self._context.id(), refused)
                self._context.forget(self.leave)
                self._sink = self._outbound = None
        finally:
            self.leave()
