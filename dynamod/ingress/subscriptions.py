"""Subscriptions to workers' events: one stream each, opened while the worker lives, opened again when it breaks."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any

import msgspec

from dynamod.actor import StreamGap, unseen
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.kv_events import WorkerEvent, unpack
from dynamod.message.worker import Subscribe
from dynamod.transport.base import Outbound, Sink, Transport

log = logging.getLogger("dynamod.router")

RETRY = 0.5
"""Seconds until a subscription that broke is opened again."""

SILENCE = 5.0
"""Seconds without an event after which a subscription counts as broken: workers publish their load every 2 s."""

MAX_SILENCE = 20.0
"""The same for one that never got an event: a way that is slower than SILENCE must not be cut again and again."""

LOOK = 1.0
"""Seconds between two looks for silent subscriptions."""

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
Events = Callable[[Any, Sequence[WorkerEvent], bool], None]
"""Key, events, and whether they are the first of a subscription, which state everything that is there."""


class EventSubscriptions:
    """`follow` workers under keys of the caller's choice; `events(key, events, snapshot)` gets what they publish.

    `now`: monotonic seconds. `steps`: see `message.worker.Subscribe`.
    """

    def __init__(
        self, transport: Transport, spawn: Spawn, now: Callable[[], float], events: Events, *, steps: bool = False
    ) -> None:
        self._transport, self._spawn, self._now, self._events, self._steps = transport, spawn, now, events, steps
        self._wanted: dict[Hashable, Instance] = {}
        self._sinks: dict[Hashable, _Subscription] = {}
        self._looked = now()

    def follow(self, key: Hashable, instance: Instance) -> None:
        """Subscribe to a worker; one that is followed already is opened at this address the next time."""
        self._wanted[key] = instance
        if key not in self._sinks:
            self._open(key)

    def drop(self, key: Hashable) -> None:
        """End the subscription to a worker; unknown ones pass."""
        self._wanted.pop(key, None)
        sink = self._sinks.pop(key, None)
        if sink is not None:
            sink.close()

    def close(self) -> None:
        """End all."""
        for key in list(self._sinks):
            self.drop(key)

    def look(self) -> None:
        """Open silent subscriptions again: a lost Subscribe or a lost last event breaks nothing on its own.

        Called at least every LOOK seconds. After a late call no subscription is judged: this process has not listened.
        """
        now = self._now()
        since = now - self._looked
        if since < LOOK:
            return
        self._looked = now
        for sink in list(self._sinks.values()):
            if since > 2 * LOOK:
                sink.last = now
            elif now - sink.last > sink.allowed:
                sink.time_out()

    def _open(self, key: Hashable, allowed: float = SILENCE) -> None:
        instance = self._wanted[key]
        sink = _Subscription(partial(self._events, key), partial(self._broken, key), self._now, allowed)
        self._sinks[key] = sink
        sink.opened(self._transport.open(instance, Subscribe(f"events-{instance.instance_id:x}", self._steps), sink))

    def _broken(self, key: Hashable, sink: "_Subscription", why: str, again: bool) -> None:
        if self._sinks.get(key) is sink:
            log.debug("the subscription to %s ended: %s", key, why)
            if again:
                self._spawn(self._retry(key, sink), "subscribe again")

    async def _retry(self, key: Hashable, sink: "_Subscription") -> None:
        await asyncio.sleep(RETRY)
        if self._sinks.get(key) is sink:
            self._open(key, sink.allowed)


class _Subscription(Sink):
    """One stream of events. `broken(sink, why, again)` is called once when it ends on its own.

    `last`: when something came, `allowed`: seconds that it may be silent, `received`: items so far.
    """

    def __init__(
        self,
        events: Callable[[Sequence[WorkerEvent], bool], None],
        broken: Callable[["_Subscription", str, bool], None],
        now: Callable[[], float],
        allowed: float,
    ) -> None:
        self._events, self._broken, self._now = events, broken, now
        self.last, self.allowed, self.received = now(), allowed, 0
        self._outbound: Outbound | None = None
        self._over = False

    def opened(self, outbound: Outbound) -> None:
        """How to end it; nothing to do when it has broken already."""
        if not self._over:
            self._outbound = outbound

    def delta(self, delta: Delta) -> None:
        """Pass events on."""
        if self._over:
            return
        self.last = self._now()
        if isinstance(delta, Items):
            try:
                skip = unseen(self.received, delta.offset, len(delta.items))
                for item in delta.items[skip:]:
                    self._events(unpack(item), self.received == 0)
                    self.received += 1
            except (StreamGap, msgspec.MsgspecError, TypeError, ValueError) as error:
                log.warning("events of a worker were lost, subscribing again: %s", error)
                self.end(str(error))
                return
            self.allowed = SILENCE
            if delta.finish is not None:
                self.end("the worker ended it")
        elif isinstance(delta, Failed):
            self._outbound = None
            self.end(delta.message, again=delta.retry)

    def lost(self, why: str) -> None:
        """The connection is gone."""
        self._outbound = None
        self.end(why)

    def time_out(self) -> None:
        """Nothing has come for too long. If nothing ever came the way may be slow: the next one is allowed more."""
        why = f"no event within {self.allowed:g} s"
        if not self.received:
            self.allowed = min(self.allowed * 2, MAX_SILENCE)
        self.end(why)

    def close(self) -> None:
        """End the subscription: its last user has left."""
        self._over = True
        outbound, self._outbound = self._outbound, None
        if outbound is not None:
            outbound.cancel()

    def end(self, why: str, *, again: bool = True) -> None:
        """It is of no use any more. `again`: another one may be."""
        if not self._over:
            self.close()
            self._broken(self, why, again)
