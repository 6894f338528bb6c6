"""The subscribers to a worker's events, and those to its steps."""

import asyncio
from collections.abc import Callable

from dynamod.message.kv_events import ForwardPass, RequestStarted, WorkerEvent, pack
from dynamod.transport.base import Reply

_NO_PROCESS = object()

BACKLOG = 1000
"""Items that may wait for a slow subscriber; it is dropped then, and subscribes again for a snapshot."""

STEP_TOKENS = 500
"""One step is published for so many tokens, of prompts and answers; more where fewer are computed in STEP_INTERVAL."""

STEP_INTERVAL = 0.5
"""Seconds, see STEP_TOKENS."""


class Subscribers:
    """They are dropped when they leave; their replies are no requests of the engine's."""

    def __init__(self) -> None:
        self._subscribers: list[Reply] = []

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self, reply: Reply, snapshot: tuple[WorkerEvent, ...]) -> None:
        """A new subscriber. `snapshot`: the state now; it gets no event that was published before."""
        reply.accepted()
        reply.items((pack(snapshot),))
        self._subscribers.append(reply)
        reply.on_end(lambda _cancelled: self._subscribers.remove(reply))

    def close(self, why: str) -> None:
        """The worker ends: its subscribers may subscribe again, to the worker that takes its place."""
        for reply in list(self._subscribers):
            reply.failed("EngineFailed", why, retry=True)

    @staticmethod
    def send(reply: Reply, events: tuple[WorkerEvent, ...]) -> None:
        """One item, unless it is empty."""
        if events and reply.backlog >= BACKLOG:
            reply.failed("Overloaded", "the subscriber is too slow", retry=True)
        elif events:
            reply.items((pack(events),))


class EventPublisher(Subscribers):
    """What happens in one turn of the loop goes to each subscriber as one item."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[tuple[object, WorkerEvent]] = []

    def subscribe(self, reply: Reply, snapshot: tuple[WorkerEvent, ...]) -> None:
        """Add a subscriber, after sending all pending events to the others."""
        self._send()
        super().subscribe(reply, snapshot)

    def publish(self, event: WorkerEvent, origin: object = _NO_PROCESS) -> None:
        """Send to all subscribers except the ones of the process `origin` (`Reply.origin`), which knows the event."""
        if not self._subscribers:
            return
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._send)
        self._pending.append((origin, event))

    def _send(self) -> None:
        """Once per turn; nothing is left to do where `subscribe` has come before it."""
        pending, self._pending = self._pending, []
        for reply in list(self._subscribers):
            self.send(reply, tuple([event for origin, event in pending if origin is not reply.origin]))


class StepPublisher(Subscribers):
    """Some of the steps are described, and sent together: an item for each step would cost more than its tokens.

    `forward_pass(rank)` describes the step that has just been computed.
    """

    def __init__(self, forward_pass: Callable[[int], ForwardPass | None]) -> None:
        super().__init__()
        self._forward_pass = forward_pass
        self._pending: list[WorkerEvent] = []
        self._described: dict[int, tuple[float, int]] = {}  # by rank, when the last one was, and tokens to the next
        self._now = asyncio.get_running_loop().time

    def started(self, request: RequestStarted) -> None:
        """A request has come."""
        if self._subscribers:
            self._pending.append(RequestStarted(request.request, (), request.prefill))

    def stepped(self, rank: int) -> int:
        """A step has been computed; returns how many tokens are to be computed until the next one is described."""
        if (step := self._forward_pass(rank)) is not None:
            self._pending.append(step)
        now, (before, count) = self._now(), self._described.get(rank, (0.0, 1))
        count = max(1, min(STEP_TOKENS, int(count * STEP_INTERVAL / max(now - before, 1e-3))))
        self._described[rank] = now, count
        return count

    def flush(self, *events: WorkerEvent) -> None:
        """Send what has been collected, and these."""
        events, self._pending = (*self._pending, *events), []
        for reply in list(self._subscribers):
            self.send(reply, events)
