"""Other nodes as the registry shows them, and daemons that answer as a test wants."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dynamod.features.cluster.messages import CommandPlace, Greeting, Order, Outcome
from dynamod.message.discovery import Instance, NodeRecord
from dynamod.message.ingress import Items
from dynamod.message.worker import Call, Request
from dynamod.transport.base import Sink


def record(started: float = 1.0, *, leaving: bool = False, **transport: str) -> NodeRecord:
    place = CommandPlace(transport or {"nats": "subject"}, leaving)
    return NodeRecord("0.2.0", 2, 1, 7, started, {"cluster": msgspec.to_builtins(place)})


@dataclass
class FarDaemon:
    """Greets after `greets` seconds and answers `answers` seconds later; None: never. `lost`: cannot be reached."""

    answer: Any = None
    greets: float | None = 0.0
    answers: float | None = 0.0
    lost: str = ""
    greeting: dict[str, Any] = field(default_factory=lambda: msgspec.to_builtins(Greeting(node="two", version="0.2.0")))
    outcome: dict[str, Any] | None = None
    orders: list[Order] = field(default_factory=list)
    cancelled: int = 0
    clock: Callable[[], float] | None = None

    def open(self, instance: Instance, request: Request, sink: Sink) -> "FarDaemon":
        assert isinstance(request, Call)
        self.orders.append(msgspec.convert(request.payload, Order))
        loop = asyncio.get_running_loop()
        if self.lost:
            loop.call_soon(sink.lost, self.lost)
            return self
        if self.greets is not None:
            loop.call_later(self.greets, self._greet, sink)
        return self

    def _greet(self, sink: Sink) -> None:
        clock = {"clock": self.clock()} if self.clock is not None else {}
        sink.delta(Items(0, 0, ({**self.greeting, **clock},)))
        if self.answers is not None:
            outcome = self.outcome or msgspec.to_builtins(Outcome(answer=self.answer))
            asyncio.get_running_loop().call_later(self.answers, sink.delta, Items(0, 1, (outcome,), "stop"))

    def cancel(self) -> None:
        self.cancelled += 1

    def confirm(self) -> None:
        """Nothing to confirm."""
