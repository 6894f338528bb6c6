"""Asking the daemon of another node, with a deadline for each of its two signs: the greeting and the outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from dynamod.message.discovery import Instance
from dynamod.message.errors import DynamodError, RequestError
from dynamod.message.worker import Call, Request
from dynamod.transport.base import Outbound, Sink
from dynamod.transport.items import ItemStream

from .messages import Greeting, Order, Outcome
from .nodes import KnownNode

T = TypeVar("T")

GREETING_S = 0.8
"""Seconds within which a node greets: one that does not is told of within a second."""
LOOK_S = 3.0
"""Seconds within which a node that has greeted answers a command that asks all nodes."""


class Unreached(DynamodError):
    """A node does not answer. The text says why, without the node's name."""


class Opens(Protocol):
    """What opens a stream at an instance: `transport.base.Transport`."""

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request`; failure is reported by `sink.lost`."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """`clock_ms`: how far the clock of the other node is ahead, in milliseconds, by the middle of the round trip.

    `seconds`: of the round trip until the greeting.
    """

    greeting: Greeting
    outcome: Outcome
    clock_ms: float
    seconds: float


async def exchange(
    transport: Opens,
    instance: Instance,
    order: Order,
    *,
    greeting_s: float = GREETING_S,
    outcome_s: float = LOOK_S,
    clock: Callable[[], float] = time.time,
) -> Heard:
    """Send a command to the daemon at an instance. Raises Unreached. `clock`: seconds since the epoch."""
    items = ItemStream()
    call = Call(f"{order.sender}/{order.command}", msgspec.to_builtins(order))
    sent = clock()
    stream = transport.open(instance, call, items)
    found = list[Any]()
    try:
        await _read(items, found, 1, greeting_s)
        received = clock()
        greeting = msgspec.convert(found[0], Greeting)
        await _read(items, found, 2, outcome_s)
        outcome = msgspec.convert(found[1], Outcome)
    except TimeoutError:
        what, limit = ("no answer", outcome_s) if found else ("does not answer", greeting_s)
        raise Unreached(f"{what} within {limit:g} s") from None
    except (RequestError, msgspec.ValidationError) as error:
        raise Unreached(str(error)) from None
    finally:
        stream.cancel()
    middle = (sent + received) / 2
    return Heard(greeting, outcome, (greeting.clock - middle) * 1000, received - sent)


async def _read(items: ItemStream, found: list[Any], count: int, seconds: float) -> None:
    """Read until there are `count` items. Raises TimeoutError, RequestError."""
    async with asyncio.timeout(seconds):
        while len(found) < count:
            more = await items.read()
            if not more:
                raise Unreached("the answer ended early")
            found += more


async def ask_all(
    nodes: Sequence[KnownNode], ask: Callable[[KnownNode], Awaitable[T]], missed: Callable[[KnownNode, str], T]
) -> list[T]:
    """Ask all nodes at once, and wait for the last. `missed`: what stands for a node that is Unreached, and why."""

    async def one(node: KnownNode) -> T:
        try:
            return await ask(node)
        except Unreached as error:
            return missed(node, str(error))

    return list(await asyncio.gather(*map(one, nodes)))
