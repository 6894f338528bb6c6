"""The dispatcher: an actor that gives requests their place at an instance, or has them wait for one.

It has a router for each model and pool, subscribes to the events of the workers for them, and keeps a queue for when
all workers are busy. `router.placement.DispatcherClient` is how others ask it for places.
"""

import asyncio
import logging
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

from dynamod.actor import Actor, Reason, control, handle
from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.view import Serving, View
from dynamod.extension.installed import enabled, overlap_sources
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import Internal, Overloaded
from dynamod.message.kv_events import WorkerEvent
from dynamod.observe.bounded import bounded
from dynamod.observe.metrics import Histogram, Row
from dynamod.router.decision import Decision, DecisionLog
from dynamod.router.eligible import lacks
from dynamod.router.placement import Acquire, Placement
from dynamod.router.router import Router, RouterSettings
from dynamod.transport.base import Transport

from .counts import HIT_RATE, MigrationCounts, Overhead, Preparation, Stage
from .dispatch_stage import DispatchStages, Key, Waiting
from .subscriptions import EventSubscriptions

log = logging.getLogger("dynamod.frontend")

HOUSEKEEPING = 0.5
"""Seconds between looks for load that was never released and for subscriptions that are silent."""


@dataclass(frozen=True, slots=True)
class ModelServed:
    """Requests for this model are placed from now on, at instances whose card agrees with this one."""

    card: ModelCard


@dataclass(frozen=True, slots=True)
class ModelGone:
    """The last worker of the model has left."""

    model: str


@dataclass(frozen=True, slots=True)
class DecisionsOf:
    """Ask for the decisions about a request: a list of `Decision`, empty when it is not known (any more)."""

    request: str


@dataclass(frozen=True, slots=True)
class RouterRows:
    """Ask for what metrics show of the routers: a list of rows (see router_metrics.rows)."""

    prefix: str
    migration_limit: int | None = None


class ModelCounts:
    """What is counted of a model's requests: what they have cost before an engine had them, and how often they moved.

    `hits`: by pool, the share of a prompt that the router expects in the chosen worker's cache.
    """

    __slots__ = ("hits", "migrations", "overhead", "preparation", "preprocess", "route")

    def __init__(self) -> None:
        self.overhead, self.migrations = Overhead(), MigrationCounts()
        self.preparation, self.preprocess, self.route = Preparation(), Stage(), Stage()
        self.hits: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(HIT_RATE))


@dataclass(slots=True)
class _Group:
    """The instances of a model in one pool, as they were at the last look."""

    router: Router
    seen: tuple[Instance, ...] = ()
    opened: bool = True  # has had as many instances at once as requests wait for at the beginning
    live: dict[int, Instance] = field(default_factory=dict[int, Instance])


class Dispatcher(Actor):
    """Places requests (`Acquire`). `counts`: by model, where it observes what decisions cost.

    `decisions`: requests of which decisions are kept. For stages: `config`, the settings of the processor's section
    with the keys of features, None for their defaults; `link`, the connection to the daemon, None without a daemon.
    """

    mailbox_capacity = 4096

    def __init__(
        self,
        view: View,
        transport: Transport,
        settings: RouterSettings,
        counts: Mapping[str, ModelCounts],
        decisions: int = 1000,
        config: Any = None,
        link: LinkRegistry | None = None,
    ) -> None:
        self.view, self._transport, self._settings, self.counts = view, transport, settings, counts
        self.config, self.link = config, link
        self._cards: dict[str, ModelCard] = {}
        self._groups: dict[Key, _Group] = {}
        self._queues: dict[Key, list[Waiting]] = {}
        self.stages = DispatchStages()  # of features, from `started` on
        self.needs_blocks = settings.scores
        self.decisions = DecisionLog(decisions)
        self._arrivals = count()
        bounded(self, "waiting requests", settings.queue_size, _longest, "requests")
        self._follow_due = self._closed = False

    async def started(self) -> None:
        """Begin to follow the view."""
        self._loop = asyncio.get_running_loop()
        self.stages.fill({one.name: one.dispatch(self) for one in enabled() if one.dispatch is not None})
        self.needs_blocks = self._settings.scores or any(one.needs_blocks for one in self.stages.values())
        self._subscriptions = EventSubscriptions(self._transport, self.context.task, self._loop.time, self._events)
        self.view.on_change(self._changed)
        self.context.task(self._keep_house(), "housekeeping")

    async def stopping(self, reason: Reason) -> None:
        """End all subscriptions."""
        self.close()

    def close(self) -> None:
        """End all subscriptions, and follow no worker any more."""
        self._closed = True
        self._subscriptions.close()

    # Messages.

    @handle
    def acquire(self, message: Acquire) -> Any:
        """Place a request now, queue it, or refuse it. A bug in the decision is that request's error."""
        key = (message.model, message.pool)
        for stage in self.stages.taking:
            if (reply := stage.acquire(key, message)) is not None:
                return reply
        self._serve_queue(key)
        try:
            return self.place(key, message) or self._enqueue(key, message)
        except Internal as error:
            return error

    @control
    async def model_served(self, message: ModelServed) -> None:
        """Route for the model; with a new router when its blocks have another size."""
        card = self._cards[message.card.name] = message.card
        for key in [key for key in self._groups if key[0] == card.name]:
            if self._groups[key].router.block_size != card.kv_cache_block_size:
                self._drop(key)
        self._group((card.name, ""))

    @control
    async def model_gone(self, message: ModelGone) -> None:
        """Forget the model's routers. Its queue waits for its return, as long as the requests' clocks allow."""
        self._cards.pop(message.model, None)
        for key in [key for key in self._groups if key[0] == message.model]:
            self._drop(key)

    @handle
    def decisions_of(self, message: DecisionsOf) -> list[Decision]:
        """Why a request went where it went."""
        return self.decisions.of(message.request)

    @handle
    async def router_rows(self, message: RouterRows) -> list[Row]:
        """What metrics show of the routers."""
        from .router_metrics import rows  # a scrape may come, or never

        return list(rows(self, self.view, message.prefix, message.migration_limit))

    # For metrics.

    @property
    def routers(self) -> dict[Key, Router]:
        """The router of each model and pool that was asked for."""
        return {key: group.router for key, group in self._groups.items()}

    def reserved(self, key: Key) -> int | None:
        """The instance that takes only requests which are alone there."""
        for stage in self.stages.reserving:
            if (instance := stage.reserved(key)) is not None:
                return instance
        return None

    def waiting_tokens(self, key: Key) -> int:
        """Tokens of the prompts of requests in a queue."""
        return sum(one.message.prompt.tokens for one in self._queues.get(key, ()) if not one.turn.done())

    def waiting(self, key: Key) -> int:
        """Requests in a queue, or at a stage."""
        queued = sum(not one.turn.done() for one in self._queues.get(key, ()))
        return queued + sum(stage.waiting(key) for stage in self.stages.values())

    # Placing.

    def place(self, key: Key, message: Acquire) -> Placement | None:
        """Decide, and count the request as load there. None when no worker can take it now.

        Raises Internal: a bug in the decision is the error of this request, and of no other.
        """
        try:
            return self._decide(key, message)
        except Exception:
            log.exception("no instance could be chosen for request %s of model %s", message.prompt.request, key[0])
            text = "internal error while an instance was chosen; the log has it under this request's id"
            raise Internal(text) from None

    def _decide(self, key: Key, message: Acquire) -> Placement | None:
        started = perf_counter()
        group = self._group(key)
        if group is None or not group.opened:
            return None
        router, serving, exclude = group.router, self.serving(key), message.exclude
        if (reserved := self.reserved(key)) is not None:
            if not message.alone:
                exclude = {*exclude, reserved}
            else:
                exclude = {one.instance_id for one in serving.instances if one.instance_id != reserved}
        unable, decision = self.unable(key, message), None
        if slow := {one: "is slow" for one in self.view.slow if serving.get(one) is not None}:
            decision = router.decide(message.prompt, serving.instances, exclude, {**unable, **slow})
        if decision is None:  # a slow instance is better than none
            decision = router.decide(message.prompt, serving.instances, exclude, unable)
        instance = serving.get(decision.chosen) if decision is not None else None
        if decision is None or instance is None:
            return None
        for stage in self.stages.looking:
            decision = stage.decided(key, message, decision, exclude)
        fell = partial(self._load_fell, key)
        placement = message.placement = Placement(instance, decision, router, fell, message.alone, message.untried)
        self.decisions.add(decision)
        router.started(placement, decision, message.prompt)
        counts, prompt = self.counts[key[0]], message.prompt
        if prompt.blocks and prompt.tokens:
            counts.hits[key[1]].observe(decision.overlap * decision.block_size / prompt.tokens)
        placement.took = perf_counter() - started
        counts.overhead.scheduling.observe(placement.took * 1000)
        return placement

    def unable(self, key: Key, message: Acquire) -> Mapping[int, str]:
        """Instances that cannot answer it, and why: mostly there are none."""
        words, adapter, found = message.prompt.form_words(message.received), message.adapter, dict[int, str]()
        if words is not None:
            found = dict.fromkeys(self.view.unable(key[0], words), "does not keep to such a form")
        if adapter is not None:
            able, all_ = self.view.served(adapter.name, adapter, key[1]), self.serving(key).instances
            lacking = (one.instance_id for one in all_ if able.get(one.instance_id) is None)
            found |= dict.fromkeys(lacking, "lacks the adapter")
        if needs := message.prompt.needs:
            cards = ((one.instance_id, self.view.card_of(key[0], one)) for one in self.serving(key).instances)
            found |= {worker: why for worker, card in cards if (why := lacks(needs, card))}
        return found

    def _enqueue(self, key: Key, message: Acquire) -> asyncio.Future[Placement] | Overloaded:
        queue = self._queues.setdefault(key, [])
        waits = message.waits and (message.again or message.prompt.instance is None)
        isolating = self.reserved(key) is not None or (key in self._groups and not self._groups[key].opened)
        if waits and not message.again and not isolating and len(queue) >= self._settings.queue_size:
            queue[:] = [one for one in queue if not one.turn.done()]
            waits = len(queue) < self._settings.queue_size
        if not waits:
            return Overloaded(f"No instance of model {message.model!r} can take the request.", retry_after=1.0)
        turn: asyncio.Future[Placement] = self._loop.create_future()
        self._queue(key, message, turn)
        return turn

    def queue(self, key: Key, message: Acquire, turn: asyncio.Future[Placement]) -> None:
        """Have a request wait in the queue, which is served soon. `turn` gets its place."""
        self._queue(key, message, turn)
        self._loop.call_soon(self._serve_queue, key)

    def _queue(self, key: Key, message: Acquire, turn: asyncio.Future[Placement]) -> None:
        insort(self._queues.setdefault(key, []), Waiting((-message.priority, next(self._arrivals)), message, turn))

    def _serve_queue(self, key: Key) -> None:
        """Place the waiting requests in their order.

        A request that accepts few workers may wait while later requests are placed.
        """
        queue = self._queues.get(key)
        if not queue:
            return
        left: list[Waiting] = []
        for place, waiting in enumerate(queue):
            if waiting.turn.done():
                continue  # its client has left, or its clock has passed
            try:
                placement = self.place(key, waiting.message)
            except Internal as error:
                waiting.turn.set_exception(error)
                continue
            if placement is not None:
                waiting.turn.set_result(placement)
            elif waiting.message.choosy:
                left.append(waiting)
            else:
                left += queue[place:]
                break
        queue[:] = left

    def _load_fell(self, key: Key) -> None:
        """A worker may have become free: serve the queue, soon."""
        for stage in self.stages.waking:
            stage.load_fell(key)
        if self._queues.get(key):
            self._loop.call_soon(self._serve_queue, key)

    # Following the workers.

    def serving(self, key: Key) -> Serving:
        """The ready instances of a model in a pool."""
        return self.view.served(key[0], self._cards.get(key[0]), key[1])

    def card(self, model: str) -> ModelCard | None:
        """The card of a model that is served."""
        return self._cards.get(model)

    def router(self, key: Key) -> Router | None:
        """The router of a model and pool; None for a model that is not served."""
        group = self._group(key)
        return group.router if group is not None else None

    def _group(self, key: Key) -> _Group | None:
        """The group, a new one when it is asked for the first time; None for a model that is not served."""
        group, card = self._groups.get(key), self._cards.get(key[0])
        if group is None and card is not None:
            size, random = card.kv_cache_block_size, self.context.random
            clocks, sources = (self._loop.time, time.time), overlap_sources()
            router = Router(card.name, size, self._settings, random, *clocks, key[1], sources)
            group = self._groups[key] = _Group(router, opened=bool(key[1]) or self._settings.initial_workers <= 1)
            self.follow()
        return group

    def _changed(self) -> None:
        """The view has changed: look at all that changes in this turn of the loop at once."""
        if not self._follow_due:
            self._follow_due = True
            self._loop.call_soon(self.follow)

    def follow(self) -> None:
        """Read the set of workers again, and subscribe to new and changed workers."""
        self._follow_due = False
        for key, group in self._groups.items() if not self._closed else ():
            instances = self.serving(key).instances
            if group.seen is instances:
                continue
            before, live = group.live, {one.instance_id: one for one in instances}
            group.seen, group.live, group.router.workers = instances, live, set(live)
            group.opened = group.opened or len(live) >= self._settings.initial_workers
            for worker in before.keys() - live.keys():
                self._subscriptions.drop((key, worker))
                group.router.state.forget(worker)
            if self._settings.needs_events or self.needs_blocks:
                for worker, instance in live.items():
                    if before.get(worker) is not instance:
                        self._subscriptions.follow((key, worker), instance)
            self._load_fell(key)

    def _drop(self, key: Key) -> None:
        """A router goes. If another takes its place, new subscriptions state everything to that one."""
        group = self._groups.pop(key)
        for worker in group.live:
            self._subscriptions.drop((key, worker))
        group.router.workers = set()

    def _events(self, source: tuple[Key, int], events: Sequence[WorkerEvent], snapshot: bool) -> None:
        key, worker = source
        if (group := self._groups.get(key)) is not None:
            group.router.state.apply(worker, events, snapshot)
            self._load_fell(key)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING)
            for group in self._groups.values():
                group.router.state.expire()
            self._subscriptions.look()


def _longest(dispatcher: Dispatcher) -> int:
    """Requests in the longest queue."""
    return max(map(len, dispatcher._queues.values()), default=0)
