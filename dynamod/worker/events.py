"""The readers of a worker's feed: what happens in one turn of the loop goes to all of them as one item each."""

import asyncio

from dynamod.message.kv_events import WorkerEvent, pack
from dynamod.transport.base import Reply

_EVERYBODY = object()

BACKLOG = 1000
"""Turns of the loop that may wait for a slow reader; it is dropped then, and subscribes again for a fresh start."""


class EventPublisher:
    """A reader is dropped when it leaves; its reply is no request of the engine's."""

    def __init__(self) -> None:
        self._readers: list[Reply] = []
        self._told: list[tuple[object, WorkerEvent]] = []
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._readers)

    def open(self, reply: Reply, first: tuple[WorkerEvent, ...]) -> None:
        """A new reader. `first`: how things stand now; it hears nothing of what was told before."""
        self._send()
        reply.accepted()
        reply.items((pack(first),))
        self._readers.append(reply)
        reply.on_end(lambda _cancelled: self._readers.remove(reply))

    def tell(self, item: WorkerEvent, origin: object = _EVERYBODY) -> None:
        """Tell all readers, but those of the process `origin` (`Reply.origin`): it knows. Costs nothing without any."""
        if not self._readers:
            return
        self._told.append((origin, item))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def close(self, why: str) -> None:
        """The worker ends: its readers may subscribe again, to whoever is there then."""
        for reply in list(self._readers):
            reply.failed("EngineFailed", why, retry=True)

    def _turn(self) -> None:
        self._scheduled = False
        self._send()

    def _send(self) -> None:
        told, self._told = self._told, []
        if not told:
            return
        for reply in list(self._readers):
            items = tuple([item for origin, item in told if origin is not reply.origin])
            if items and reply.backlog >= BACKLOG:
                reply.failed("Overloaded", "the reader is too slow", retry=True)
            elif items:
                reply.items((pack(items),))
