"""Where requests go: a router per model, fed by the workers' feeds, and a route for each flight.

A route is charged to its worker before the request is sent, is told when the prompt has been computed, and ends with
the flight, whatever way that ends: load can neither be late nor be left behind.
"""

import asyncio
import functools
import logging
import random as random_module
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec

from dynamod.actor import StreamGap, unseen
from dynamod.message import cache
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.registry import Instance, ModelCard
from dynamod.message.worker import Subscribe
from dynamod.post.base import Outbound, Post, Sink
from dynamod.registry.view import View
from dynamod.router.decision import Decision, DecisionLog
from dynamod.router.router import Prompt, Router, RouterSettings

log = logging.getLogger("dynamod.router")

AGAIN = 0.5
"""Seconds until a feed that broke is asked for again, while its worker lives."""

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]


class Route:
    """One flight's way: `pick` decides and charges, `computed` and `end` release."""

    __slots__ = ("_choose", "_router", "decision", "others", "prompt")

    def __init__(
        self,
        router: Router,
        prompt: Prompt,
        choose: Callable[["Route", Collection[int]], Instance | None],
        others: Callable[[Collection[int]], bool],
    ) -> None:
        self._router, self._choose = router, choose
        self.others = others
        self.prompt = prompt
        self.decision: Decision | None = None

    def pick(self, tried: Collection[int]) -> Instance | None:
        """The instance to send to, None when none can take it."""
        return self._choose(self, tried)

    def computed(self) -> None:
        """The first token has come."""
        self._router.computed(self)

    def end(self) -> None:
        """The worker has no more to do with the request."""
        self._router.end(self)


class Dispatch:
    """All routers of an ingress process."""

    def __init__(
        self, view: View, post: Post, settings: RouterSettings, random: random_module.Random, spawn: Spawn
    ) -> None:
        self._view, self._post, self.settings = view, post, settings
        self._random, self._spawn = random, spawn
        self._now = asyncio.get_running_loop().time
        self.routers: dict[str, Router] = {}
        self.decisions = DecisionLog()
        self._feeds: dict[tuple[str, int], _FeedSink] = {}
        view.on_change(self.follow)

    @property
    def _listens(self) -> bool:
        """Whether the mode makes anything of what workers tell."""
        modes = (self.settings.mode, self.settings.shadow_mode)
        return any(mode in ("kv", "least-loaded", "power-of-two") for mode in modes)

    def router(self, card: ModelCard) -> Router:
        """The router of a model; a new one when its blocks have another size."""
        router = self.routers.get(card.name)
        if router is None or router.block_size != card.kv_cache_block_size:
            router = self.routers[card.name] = Router(
                card.name, card.kv_cache_block_size, self.settings, self._random, self._now, time.time
            )
            self.follow()
        return router

    def drop(self, model: str) -> None:
        """Nobody serves the model any more."""
        self.routers.pop(model, None)
        self.follow()

    def route(self, card: ModelCard, prompt: Prompt) -> Route:
        """A route for one flight."""
        return Route(
            self.router(card),
            prompt,
            functools.partial(self._choose, card.name),
            functools.partial(self.available, card.name),
        )

    def instances(self, model: str) -> Sequence[Instance]:
        """Instances that can be asked now."""
        return self._view.serving(model)

    def available(self, model: str, tried: Collection[int]) -> bool:
        """Whether an instance is ready that has not been tried."""
        return any(one.instance_id not in tried for one in self._view.serving(model))

    def _choose(self, model: str, route: Route, tried: Collection[int]) -> Instance | None:
        router = self.routers.get(model)
        if router is None:
            return None
        instances = self._view.serving(model)
        decision = router.decide(route.prompt, instances, tried)
        if decision is None:
            return None
        route.decision = decision
        self.decisions.add(decision)
        router.begin(route, decision, route.prompt)
        return next(one for one in instances if one.instance_id == decision.chosen)

    def expire(self) -> None:
        """Forget load that was never released. Called now and then."""
        for router in self.routers.values():
            router.expire()

    # Feeds.

    def follow(self) -> None:
        """Subscribe to the workers that are there, let go of those that are not."""
        wanted: dict[tuple[str, int], Instance] = {}
        for model in self.routers:
            for instance in self._view.serving(model):
                wanted[model, instance.instance_id] = instance
        for key in [key for key in self._feeds if key not in wanted]:
            self._feeds.pop(key).close()
        for model, router in self.routers.items():
            live = {number for name, number in wanted if name == model}
            for worker in router.workers - live:
                router.forget(worker)
            router.workers = live
        if self._listens:
            for key, instance in wanted.items():
                if key not in self._feeds:
                    self._subscribe(key, instance)

    def _subscribe(self, key: tuple[str, int], instance: Instance) -> None:
        model, worker = key
        sink = _FeedSink(functools.partial(self.routers[model].news, worker), functools.partial(self._broken, key))
        self._feeds[key] = sink
        sink.open(self._post.open(instance, Subscribe(f"feed-{worker:x}"), sink))

    def _broken(self, key: tuple[str, int], sink: "_FeedSink", why: str, again: bool) -> None:
        if self._feeds.get(key) is not sink:
            return
        log.debug("the feed of instance %x for %s ended: %s", key[1], key[0], why)
        if again:
            self._spawn(self._later(key, sink), "feed again")

    async def _later(self, key: tuple[str, int], sink: "_FeedSink") -> None:
        await asyncio.sleep(AGAIN)
        if self._feeds.get(key) is sink:
            del self._feeds[key]
            self.follow()


class _FeedSink(Sink):
    """Takes a worker's feed to its router. `broken(sink, why, again)` is called once when it ends by itself."""

    def __init__(
        self,
        news: Callable[[Sequence[cache.FeedItem]], None],
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
