"""Clients of endpoints: calls to instances that are found in the registry, or to the one at a static address."""

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator
from typing import Any, Self

import msgspec

from dynamod.actor import Stream, StreamGap
from dynamod.message.errors import REQUEST_ERRORS, EngineFailed, Overloaded, RequestError, TimedOut
from dynamod.message.ingress import Accepted, Delta, Failed, Items
from dynamod.message.registry import Instance
from dynamod.message.worker import Call
from dynamod.post.base import Sink
from dynamod.registry.keys import STATIC, Address, place_of

from ..client import plain
from ..site import Surroundings
from .context import Context

log = logging.getLogger("dynamod.python")

ACCEPT = 30.0
"""Seconds for an instance to take a call. How long it works on it then is its own business."""
WAIT = 600.0
"""Seconds that `wait_for_instances` waits."""


class Annotated:
    """One item of an answer, and what may be said beside it."""

    def __init__(
        self,
        data: Any,
        event: str | None = None,
        comments: list[str] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        self._data, self._event, self._comments, self._id = data, event, comments, id

    def data(self) -> Any:
        """What the handler yielded."""
        return self._data

    def event(self) -> str | None:
        """Name of an event; None: it is plain data."""
        return self._event

    def comments(self) -> list[str] | None:
        """Further words."""
        return self._comments

    def id(self) -> str | None:
        """Id of the item, if it has one."""
        return self._id

    def is_error(self) -> bool:
        """Whether it stands for an error; those are raised here, so none that is seen does."""
        return self._event == "error"

    def __repr__(self) -> str:
        return f"Annotated(data={self._data!r}, event={self._event!r}, comments={self._comments!r}, id={self._id!r})"


class Answers:
    """What a call gives: `async for item in await client.random(request)`; the `await` may be left out.

    The request is sent at the `await`, or when the first item is asked for.
    """

    def __init__(self, call: "_Call", annotated: bool) -> None:
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


class _Refused(Exception):
    """Nothing was done for the call; another instance may take it."""

    def __init__(self, error: RequestError) -> None:
        self.error = error


class _Sink(Sink):
    def __init__(self, where: str) -> None:
        self._where = where
        self.stream: Stream[Any] = Stream()
        self._taken = asyncio.Event()

    def delta(self, delta: Delta) -> None:
        """See Sink."""
        match delta:
            case Accepted():
                pass
            case Items(_, offset, items, finish):
                try:
                    self.stream.push(offset, items)
                except StreamGap as gap:
                    self.stream.fail(EngineFailed(f"{self._where}: {gap}"))
                if finish is not None:
                    self.stream.end(finish)
            case Failed(_, name, message, param, retry, code):
                error = REQUEST_ERRORS.get(name, EngineFailed)(message, param=param, code=code)
                self.stream.fail(_Refused(error) if retry else error)
            case _:
                self.stream.fail(EngineFailed(f"{self._where} does not answer in items: it is no endpoint for calls"))
        self._taken.set()

    def lost(self, why: str) -> None:
        """See Sink."""
        self.stream.fail(EngineFailed(f"{self._where}: {why}"))
        self._taken.set()

    def leave(self) -> None:
        """Nothing is wanted any more."""
        self.stream.end()
        self._taken.set()

    async def taken(self) -> None:
        """Wait for the first word of the instance. Raises TimedOut."""
        try:
            async with asyncio.timeout(ACCEPT):
                await self._taken.wait()
        except TimeoutError:
            raise TimedOut(f"{self._where} did not take the call within {ACCEPT:g} s") from None


Pick = Callable[[Collection[int]], Instance]
"""An instance that is not among those tried. Raises Overloaded."""


class _Call:
    """One request: sent again to another instance as long as none has begun with it."""

    def __init__(self, around: Surroundings, payload: Any, pick: Pick, context: Context, *, again: bool) -> None:
        self._around, self._payload, self._pick, self._context, self._again = around, payload, pick, context, again
        self._tried: set[int] = set()
        self._sink: _Sink | None = None
        self._outbound: Any = None
        self._left = False
        self._loop = asyncio.get_running_loop()

    def send(self) -> None:
        """Send it to the next instance. Raises Overloaded when there is none."""
        if self._sink is not None or self._left:
            return
        instance = self._pick(self._tried)
        self._tried.add(instance.instance_id)
        sink = self._sink = _Sink(f"{instance.path} ({instance.process or instance.instance_id})")
        self._outbound = self._around.mail.open(instance, Call(self._context.id(), self._payload), sink)
        self._context.on_stop(self.leave)

    def leave(self) -> None:
        """The reader has left."""
        self._left = True
        self._context.forget(self.leave)
        if self._outbound is not None:
            self._outbound.cancel()
            self._outbound = None
        if self._sink is not None:
            self._sink.leave()

    def forgotten(self) -> None:
        """Nobody holds the answer any more; called from wherever that is noticed."""
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
                    await self._sink.taken()
                    while items := await self._sink.stream.read():
                        for item in items:
                            seen = True
                            yield item
                except _Refused as error:
                    refused = error.error
                    if seen or not self._again:
                        raise refused from None
                    log.debug("call %s is made again elsewhere: %s", self._context.id(), refused)
                    self._context.forget(self.leave)
                    self._sink = self._outbound = None
                else:
                    return
        finally:
            self.leave()


class Client:
    """Instances of one endpoint. Every call gives an asynchronous iterator of `Annotated` items.

    `annotated=False` gives the payloads themselves; `context`: stopping it stops the call.
    """

    def __init__(self, around: Surroundings, address: Address, *, static: bool) -> None:
        self._around, self._address, self._is_static = around, address, static
        self._static: dict[str, Instance] = {}
        self._turn = itertools.count()

    async def open(self) -> Self:
        """Look at the registry: what is there now is known when this returns."""
        around, found = self._around, self._static
        if self._is_static:

            def told(key: str, value: bytes | None) -> None:
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = msgspec.json.decode(value, type=Instance)

            await around.caught_up(f"{STATIC}{place_of(self._address)}/", told)
        else:
            around.view  # noqa: B018 - begins to watch
            await around.caught_up(f"local/nothing/{uuid.uuid4().hex}", lambda _key, _value: None)
        return self

    def instance_ids(self) -> list[int]:
        """Ids of the instances that take calls now, in order."""
        view = self._around.view
        ready = view.instances(str(self._address)).values()
        return sorted(one.instance_id for one in ready if one.state == "ready" and not view.quarantined(one))

    async def wait_for_instances(self, timeout: float = WAIT) -> list[int]:
        """Wait for the first instance; returns the ids of all. Raises TimeoutError after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not (ids := self.instance_ids()):  # noqa: ASYNC110 - a view never forgets who listens
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise TimeoutError(f"no instance of dyn://{self._address} within {timeout:g} s") from None
        return ids

    def random(self, request: Any = None, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call any instance."""

        def pick(tried: Collection[int]) -> Instance:
            return self._instance(self._around.system.random.choice(self._ready(tried)))

        return self._call(request, annotated, context, pick)

    generate = random

    def round_robin(self, request: Any = None, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call the next instance of this client."""

        def pick(tried: Collection[int]) -> Instance:
            ids = self._ready(tried)
            return self._instance(ids[next(self._turn) % len(ids)])

        return self._call(request, annotated, context, pick)

    def direct(self, request: Any, instance_id: int, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call one instance and no other."""

        def pick(_tried: Collection[int]) -> Instance:
            if instance_id not in self.instance_ids():
                known = ", ".join(map(str, self.instance_ids())) or "none"
                raise Overloaded(f"dyn://{self._address} has no instance {instance_id}; there are: {known}")
            return self._instance(instance_id)

        return self._call(request, annotated, context, pick, again=False)

    def static(self, request: Any = None, annotated: bool = True, context: Context | None = None) -> Answers:
        """Call the worker at the static address."""

        def pick(tried: Collection[int]) -> Instance:
            here = [one for one in self._static.values() if one.instance_id not in tried]
            instance = here[0] if here else self._around.static_instance(self._address)
            if instance is None or instance.instance_id in tried:
                raise Overloaded(f"no static worker at dyn://{self._address}")
            return instance

        return self._call(request, annotated, context, pick)

    def _ready(self, tried: Collection[int]) -> list[int]:
        ids = [number for number in self.instance_ids() if number not in tried]
        if not ids:
            raise Overloaded(
                f"no instance of dyn://{self._address} is ready: await client.wait_for_instances() before"
                if not tried
                else f"no other instance of dyn://{self._address} is ready"
            )
        return ids

    def _instance(self, number: int) -> Instance:
        return self._around.view.instances(str(self._address))[number]

    def _call(
        self, request: Any, annotated: bool, context: Context | None, pick: Pick, *, again: bool = True
    ) -> Answers:
        context = context if context is not None else Context()
        return Answers(_Call(self._around, plain(request), pick, context, again=again), annotated)
