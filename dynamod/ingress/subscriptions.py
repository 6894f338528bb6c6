"""EventSubscriptions of workers: one stream each, opened while the worker lives, opened again when it breaks."""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

import msgspec

from dynamod.actor import StreamGap, unseen
from dynamod.message import kv_events as cache
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.worker import Subscribe
from dynamod.transport.base import Outbound, Sink, Transport

log = logging.getLogger("dynamod.router")

AGAIN = 0.5
"""Seconds until a feed that broke is asked for again."""

SILENT = 5.0
"""Seconds without a word after which a feed is taken to be broken: workers say their load at least every 2 s."""

PATIENCE = 20.0
"""Most seconds for one that is asked for again and again: a way that is slower than SILENT must not be cut for ever."""

LOOK = 1.0
"""Seconds between two looks for silent feeds."""

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
News = Callable[[Any, Sequence[cache.WorkerEvent], bool], None]
"""Whose feed, its words, and whether they are its first, which say how things stand."""


class EventSubscriptions:
    """`follow` workers under keys of the caller's choice; `news(key, words, anew)` takes what they tell.

    `now`: monotonic seconds.
    """

    def __init__(self, transport: Transport, spawn: Spawn, now: Callable[[], float], news: News) -> None:
        self._transport, self._spawn, self._now, self._news = transport, spawn, now, news
        self._wanted: dict[Hashable, Instance] = {}
        self._sinks: dict[Hashable, _EventSink] = {}
        self._looked = now()

    def follow(self, key: Hashable, instance: Instance) -> None:
        """Subscribe to a worker; one that is followed already is from now on asked again at this record's place."""
        self._wanted[key] = instance
        if key not in self._sinks:
            self._open(key)

    def drop(self, key: Hashable) -> None:
        """Let go of a worker's feed; unknown ones pass."""
        self._wanted.pop(key, None)
        sink = self._sinks.pop(key, None)
        if sink is not None:
            sink.close()

    def close(self) -> None:
        """Let go of all."""
        for key in list(self._sinks):
            self.drop(key)

    def look(self) -> None:
        """Open feeds again that have been silent: a lost Subscribe or a lost last word breaks nothing by itself.

        Called at least every LOOK seconds; who was away for longer has not listened, and judges nobody.
        """
        now = self._now()
        since = now - self._looked
        if since < LOOK:
            return
        self._looked = now
        if since > 2 * LOOK:
            for sink in self._sinks.values():
                sink.heard = now
            return
        for sink in [sink for sink in self._sinks.values() if now - sink.heard > sink.patience]:
            sink.silent()

    def _open(self, key: Hashable, patience: float = SILENT) -> None:
        instance, news = self._wanted[key], functools.partial(self._news, key)
        sink = self._sinks[key] = _EventSink(news, functools.partial(self._broken, key), self._now, patience)
        sink.open(self._transport.open(instance, Subscribe(f"feed-{instance.instance_id:x}"), sink))

    def _broken(self, key: Hashable, sink: "_EventSink", why: str, again: bool) -> None:
        if self._sinks.get(key) is sink:
            log.debug("the feed of %s ended: %s", key, why)
            if again:
                self._spawn(self._later(key, sink), "feed again")

    async def _later(self, key: Hashable, sink: "_EventSink") -> None:
        await asyncio.sleep(AGAIN)
        if self._sinks.get(key) is sink:
            self._open(key, min(sink.patience * 2, PATIENCE) if sink.mute else SILENT)


class _EventSink(Sink):
    """Takes a worker's feed to its router. `broken(sink, why, again)` is called once when it ends by itself."""

    def __init__(
        self,
        news: Callable[[Sequence[cache.WorkerEvent], bool], None],
        broken: Callable[["_EventSink", str, bool], None],
        now: Callable[[], float],
        patience: float,
    ) -> None:
        self._news, self._broken, self._now = news, broken, now
        self.heard, self.patience = now(), patience
        self.mute = False  # it has been waited for in vain
        self._outbound: Outbound | None = None
        self._received = 0
        self._over = False

    def open(self, outbound: Outbound) -> None:
        """The way to cancel; nothing to do when it has broken already."""
        if not self._over:
            self._outbound = outbound

    def delta(self, delta: Delta) -> None:
        if self._over:
            return
        self.heard = self._now()
        if isinstance(delta, Items):
            try:
                skip = unseen(self._received, delta.offset, len(delta.items))
                anew = self._received == 0
                for item in delta.items[skip:]:
                    self._news(cache.unpack(item), anew)
                    anew = False
            except (StreamGap, msgspec.MsgspecError, TypeError, ValueError) as error:
                log.warning("a worker's feed lost news, and is opened again: %s", error)
                self._end(str(error), True)
                return
            self._received += len(delta.items) - skip
            self.patience = SILENT
            if delta.finish is not None:
                self._end("the worker ended it", True)
        elif isinstance(delta, Failed):
            self._outbound = None
            self._end(delta.message, delta.retry)

    def lost(self, why: str) -> None:
        self._outbound = None
        self._end(why, True)

    def silent(self) -> None:
        """Nothing has come for too long."""
        self.mute = self._received == 0
        self._end(f"nothing has come for {self.patience:g} s", True)

    def close(self) -> None:
        """The worker is gone, or its model."""
        self._over = True
        outbound, self._outbound = self._outbound, None
        if outbound is not None:
            outbound.cancel()

    def _end(self, why: str, again: bool) -> None:
        if not self._over:
            self.close()
            self._broken(self, why, again)
