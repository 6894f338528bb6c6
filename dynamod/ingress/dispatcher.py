"""Where requests go: a router per model, a route for each flight, and a queue for when all workers are busy.

A route is charged to its worker before the request is sent, is told when the prompt has been computed, and ends with
the flight, whatever way that ends: load can neither be late nor be left behind.
"""

import asyncio
import heapq
import random as random_module
import time
from collections.abc import Collection, Sequence
from itertools import count
from time import perf_counter
from typing import Protocol

from dynamod.discovery.view import View
from dynamod.http.metrics import MigrationCounts, Overhead
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.kv_events import WorkerEvent
from dynamod.router.decision import Decision, DecisionLog
from dynamod.router.router import Prompt, Router, RouterSettings
from dynamod.transport.base import Transport

from .subscriptions import EventSubscriptions, Spawn


class Route:
    """One flight's way: see migration.request.Route. `decision` is the last one."""

    __slots__ = ("_dispatch", "_model", "_router", "decision", "prompt")

    def __init__(self, dispatch: "Dispatcher", model: str, router: Router, prompt: Prompt) -> None:
        self._dispatch, self._model, self._router = dispatch, model, router
        self.prompt = prompt
        self.decision: Decision | None = None

    def pick(self, tried: Collection[int]) -> Instance | None:
        """Decide and charge; None when none can take it."""
        return self._dispatch.pick(self._model, self._router, self, tried)

    def others(self, tried: Collection[int]) -> bool:
        """Whether an instance is ready that has not been tried, and may be: who asks for one by its id has no other."""
        return self.prompt.instance not in tried and self._dispatch.available(self._model, tried)

    def computed(self) -> None:
        """The first token has come."""
        self._router.prefill_completed(self)
        self._dispatch.released(self._model)

    def wait(self, inflight: "Queued") -> bool:
        """A move that finds all workers busy waits, whatever the queue's size: its client is in the middle."""
        self._dispatch.wait(self._model, inflight, forced=True)
        return True

    def end(self) -> None:
        """The worker has no more to do with the request."""
        self._router.finished(self)
        self._dispatch.released(self._model)


class Queued(Protocol):
    """What waits for a worker that is not busy: a flight. `instance` is None until it has been sent once."""

    over: bool
    instance: Instance | None

    def send(self) -> bool:
        """Send it. False when none can take it."""
        ...


class Dispatcher:
    """All routers of an ingress process, and what waits for them."""

    def __init__(
        self, view: View, transport: Transport, settings: RouterSettings, random: random_module.Random, spawn: Spawn
    ) -> None:
        self._view, self.settings = view, settings
        self._random = random
        self._loop = asyncio.get_running_loop()
        self.routers: dict[str, Router] = {}
        self.decisions = DecisionLog()
        self._cards: dict[str, ModelCard] = {}
        self._overheads: dict[str, Overhead] = {}
        self._migrations: dict[str, MigrationCounts] = {}
        self._feeds = EventSubscriptions(transport, spawn, self._loop.time, self._news)
        self._live: dict[str, dict[int, Instance]] = {}  # model -> the workers that are followed
        self._followed: dict[str, tuple[Instance, ...]] = {}  # model -> what the view said then
        self._due = False
        self._queues: dict[str, list[tuple[int, int, Queued]]] = {}  # heaps: priority, turn, flight
        self._turns = count()
        self._closed = False
        view.on_change(self._changed)

    def router(self, card: ModelCard) -> Router:
        """The router of a model; a new one when its blocks have another size."""
        self._cards[card.name] = card
        router = self.routers.get(card.name)
        if router is None or router.block_size != card.kv_cache_block_size:
            self._unfollow(card.name)
            router = self.routers[card.name] = Router(
                card.name, card.kv_cache_block_size, self.settings, self._random, self._loop.time, time.time
            )
            self.follow()
        return router

    def drop(self, model: str) -> None:
        """Nobody serves the model any more."""
        self._unfollow(model)
        self._cards.pop(model, None)
        self._overheads.pop(model, None)
        self._migrations.pop(model, None)

    def route(self, card: ModelCard, prompt: Prompt) -> Route:
        """A route for one flight."""
        return Route(self, card.name, self.router(card), prompt)

    def overhead(self, model: str) -> Overhead:
        """What routing has cost requests of a model."""
        found = self._overheads.get(model)
        if found is None:
            found = self._overheads[model] = Overhead()
        return found

    def migrations(self, model: str) -> MigrationCounts:
        """How often requests for a model had to move."""
        found = self._migrations.get(model)
        if found is None:
            found = self._migrations[model] = MigrationCounts()
        return found

    def available(self, model: str, tried: Collection[int]) -> bool:
        """Whether an instance is ready that has not been tried."""
        served = self._view.served(model, self._cards.get(model))
        return any(one.instance_id not in tried for one in served.instances)

    def pick(self, model: str, router: Router, route: Route, tried: Collection[int]) -> Instance | None:
        """Decide for a route and charge it."""
        started = perf_counter()
        served = self._view.served(model, self._cards.get(model))
        decision = router.decide(route.prompt, served.instances, tried)
        if decision is None:
            return None
        route.decision = decision
        self.decisions.add(decision)
        router.started(route, decision, route.prompt)
        self.overhead(model).scheduling.observe((perf_counter() - started) * 1000)
        return served.get(decision.chosen)

    def _changed(self) -> None:
        """The registry has said something: look at all that it says in this turn of the loop at once."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self.follow)

    def follow(self) -> None:
        """Look again at which workers there are, and follow those that are new or have changed."""
        self._due = False
        if self._closed:
            return
        for model, router in self.routers.items():
            instances = self._view.served(model, self._cards.get(model)).instances
            if self._followed.get(model) is instances:
                continue
            self._followed[model] = instances
            before = self._live.get(model, {})
            live = self._live[model] = {one.instance_id: one for one in instances}
            for worker in before.keys() - live.keys():
                self._feeds.drop((model, worker))
                router.state.forget(worker)
            if self.settings.needs_events:
                for worker, instance in live.items():
                    if before.get(worker) is not instance:
                        self._feeds.follow((model, worker), instance)
            router.workers = set(live)
            self.released(model)

    def _unfollow(self, model: str) -> None:
        """A model's router goes, or another takes its place, which the workers' new feeds tell anew."""
        self._followed.pop(model, None)
        router = self.routers.pop(model, None)
        for worker in self._live.pop(model, ()):
            self._feeds.drop((model, worker))
            if router is not None:
                router.state.forget(worker)
        if router is not None:
            router.workers = set()

    def close(self) -> None:
        """Let go of all feeds: who opens them again is about to end."""
        self._closed = True
        self._feeds.close()

    def expire(self) -> None:
        """Forget load that was never released, ask again for feeds that are silent. Called twice a second."""
        for router in self.routers.values():
            router.state.expire()
        self._feeds.look()

    def _news(self, key: tuple[str, int], items: Sequence[WorkerEvent], anew: bool) -> None:
        model, worker = key
        router = self.routers.get(model)
        if router is not None:
            router.state.apply(worker, items, anew)
            self.released(model)

    # The queue.

    def wait(self, model: str, inflight: Queued, priority: int = 0, *, forced: bool = False) -> bool:
        """Queue a flight that found all workers busy, higher priorities first. False when the queue is full; `forced`
        finds place.

        The flight's own clock bounds how long it waits.
        """
        queue = self._queues.setdefault(model, [])
        if not forced and len(queue) >= self.settings.queue_size:
            queue[:] = [one for one in queue if not one[2].over and one[2].instance is None]
            heapq.heapify(queue)
            if len(queue) >= self.settings.queue_size:
                return False
        heapq.heappush(queue, (-priority, next(self._turns), inflight))
        return True

    def waiting(self, model: str) -> int:
        """Flights in the queue of a model."""
        return sum(not inflight.over for _, _, inflight in self._queues.get(model, ()))

    def released(self, model: str) -> None:
        """Load may have fallen: send what waits, soon and in its order."""
        if self._queues.get(model):
            self._loop.call_soon(self._pump, model)

    def _pump(self, model: str) -> None:
        queue = self._queues.get(model, [])
        while queue:
            inflight = queue[0][2]
            gone = inflight.over or inflight.instance is not None  # its clock may have sent it meanwhile
            if not gone and not inflight.send():
                return
            heapq.heappop(queue)
