"""Feeds of workers: one stream each, opened while the worker lives, opened again when it breaks."""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any

import msgspec

from dynamod.actor import StreamGap, unseen
from dynamod.message import cache
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.registry import Instance
from dynamod.message.worker import Subscribe
from dynamod.post.base import Outbound, Post, Sink

log = logging.getLogger("dynamod.router")

AGAIN = 0.5
"""Seconds until a feed that broke is asked for again."""

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
News = Callable[[Sequence[cache.FeedItem]], None]


class Feeds:
    """`follow` says which workers there are and who takes their news."""

    def __init__(self, post: Post, spawn: Spawn) -> None:
        self._post, self._spawn = post, spawn
        self._wanted: dict[Hashable, tuple[Instance, News]] = {}
        self._sinks: dict[Hashable, _FeedSink] = {}

    def follow(self, wanted: Mapping[Hashable, tuple[Instance, News]]) -> None:
        """Subscribe to those that are new, let go of those that are gone."""
        self._wanted = dict(wanted)
        for key in [key for key in self._sinks if key not in wanted]:
            self._sinks.pop(key).close()
        for key in wanted:
            if key not in self._sinks:
                self._open(key)

    def _open(self, key: Hashable) -> None:
        instance, news = self._wanted[key]
        sink = self._sinks[key] = _FeedSink(news, functools.partial(self._broken, key))
        sink.open(self._post.open(instance, Subscribe(f"feed-{instance.instance_id:x}"), sink))

    def _broken(self, key: Hashable, sink: "_FeedSink", why: str, again: bool) -> None:
        if self._sinks.get(key) is sink:
            log.debug("the feed of %s ended: %s", key, why)
            if again:
                self._spawn(self._later(key, sink), "feed again")

    async def _later(self, key: Hashable, sink: "_FeedSink") -> None:
        await asyncio.sleep(AGAIN)
        if self._sinks.get(key) is sink:
            self._open(key)


class _FeedSink(Sink):
    """Takes a worker's feed to its router. `broken(sink, why, again)` is called once when it ends by itself."""

    def __init__(
        self,
        news: News,
        broken: Callable[["_FeedSink", str, bool], None],
    ) -> None:
        self._news, self._broken = news, broken
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
        if isinstance(delta, Items):
            try:
                skip = unseen(self._received, delta.offset, len(delta.items))
                for item in delta.items[skip:]:
                    self._news(cache.unpack(item))
            except (StreamGap, msgspec.MsgspecError, TypeError, ValueError) as error:
                self._end(str(error), True)
                return
            self._received += len(delta.items) - skip
            if delta.finish is not None:
                self._end("the worker ended it", True)
        elif isinstance(delta, Failed):
            self._outbound = None
            self._end(delta.message, delta.retry)

    def lost(self, why: str) -> None:
        self._outbound = None
        self._end(why, True)

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
