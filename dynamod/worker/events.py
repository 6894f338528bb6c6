"""The subscribers to a worker's events: what happens in one turn of the loop goes to each of them as one item."""

import asyncio

from dynamod.message.kv_events import WorkerEvent, pack
from dynamod.transport.base import Reply

_NO_PROCESS = object()

BACKLOG = 1000
"""Turns of the loop that may wait for a slow subscriber; it is dropped then, and subscribes again for a snapshot."""


class EventPublisher:
    """A subscriber is dropped when it leaves; its reply is no request of the engine's."""

    def __init__(self) -> None:
        self._subscribers: list[Reply] = []
        self._pending: list[tuple[object, WorkerEvent]] = []

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self, reply: Reply, snapshot: tuple[WorkerEvent, ...]) -> None:
        """A new subscriber. `snapshot`: the state now; it gets no event that was published before."""
        self._send()
        reply.accepted()
        reply.items((pack(snapshot),))
        self._subscribers.append(reply)
        reply.on_end(lambda _cancelled: self._subscribers.remove(reply))

    def publish(self, event: WorkerEvent, origin: object = _NO_PROCESS) -> None:
        """Send to all subscribers, but those of the process `origin` (`Reply.origin`): it knows."""
        if not self._subscribers:
            return
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._send)
        self._pending.append((origin, event))

    def close(self, why: str) -> None:
        """The worker ends: its subscribers may subscribe again, to whoever is there then."""
        for reply in list(self._subscribers):
            reply.failed("EngineFailed", why, retry=True)

    def _send(self) -> None:
        """Once per turn; nothing is left to do where `subscribe` has come before it."""
        pending, self._pending = self._pending, []
        for reply in list(self._subscribers):
            events = tuple([event for origin, event in pending if origin is not reply.origin])
            if events and reply.backlog >= BACKLOG:
                reply.failed("Overloaded", "the subscriber is too slow", retry=True)
            elif events:
                reply.items((pack(events),))
