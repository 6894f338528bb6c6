"""What a worker publishes while others subscribe: events to routers, steps to planners, the load to both."""

import asyncio
import itertools
from typing import Any

import msgspec

from dynamod.engine.base import Engine, Spawn
from dynamod.engine.capabilities import ReportsBlocks, ReportsSteps
from dynamod.message.kv_events import (
    Cleared,
    ForwardPass,
    Load,
    PrefillCompleted,
    RequestFinished,
    RequestStarted,
    WorkerEvent,
)
from dynamod.message.worker import Subscribe
from dynamod.transport.base import Reply

from .events import EventPublisher, StepPublisher

LOAD_INTERVAL = 0.25
"""Seconds between two looks at the engine's load, while there are subscribers."""

KEEP_ALIVE = 2.0
"""Seconds after which the load is published although it has not changed: a silent subscription is taken for lost."""

STEP_LOOKS = 4
"""Number of looks after which steps and load are sent to the subscribers of steps."""


class _Open(msgspec.Struct, eq=False):
    """A request in the engine's hands, as events describe it."""

    started: RequestStarted
    prefilled: bool = False


class Subscriptions:
    """The subscribers of a worker, and what they have to know: the requests in the engine's hands, and its load.

    `spawn` starts a task of the worker.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self.blocks: ReportsBlocks | None = None  # the engine, where it names KV blocks
        self._reporter: ReportsSteps | None = None  # the engine, where it describes its steps
        self.open: dict[Reply, _Open] = {}
        self._events = EventPublisher()
        self._steps = StepPublisher(self._forward_pass)
        self._watching = False
        self._last_load: Load | None = None

    def follow(self, engine: Engine[Any]) -> None:
        """Publish what this engine says."""
        self.blocks = engine if isinstance(engine, ReportsBlocks) else None
        self._reporter = engine if isinstance(engine, ReportsSteps) else None
        engine.publish, engine.prefill_completed = self._events.publish, self._prefill_completed

    def __len__(self) -> int:
        return len(self._events) + len(self._steps)

    def begin(self, reply: Reply, started: RequestStarted) -> None:
        """The engine gets a request."""
        self.open[reply] = _Open(started)
        self._events.publish(started, reply.origin)
        self._steps.started(started)

    def _prefill_completed(self, reply: Reply) -> None:
        """The engine has a request's first token."""
        request = self.open.get(reply)
        if request is not None and not request.prefilled:
            request.prefilled = True
            self._events.publish(PrefillCompleted(request.started.request), reply.origin)

    def end(self, reply: Reply) -> None:
        """A request is over."""
        self._events.publish(RequestFinished(self.open.pop(reply).started.request), reply.origin)

    def close(self, why: str) -> None:
        """The worker ends."""
        self._events.close(why)
        self._steps.close(why)

    def subscribe(self, engine: Engine[Any], request: Subscribe, reply: Reply) -> None:
        """First the state now. It is no open request: a drain ends it."""
        if request.steps:
            self._steps.subscribe(reply, (*self.forward_passes(), engine.load()))
            engine.stepped = self._steps.stepped
        else:
            self._events.subscribe(reply, self._snapshot(engine, reply))
        self._last_load = None  # subscribers may have got different loads: the next look publishes again
        if not self._watching:
            self._watching = True
            self._spawn(self._watch(engine), "load")

    def _snapshot(self, engine: Engine[Any], reply: Reply) -> tuple[WorkerEvent, ...]:
        """With the requests of other processes than the subscriber's."""
        snapshot: list[WorkerEvent] = [Cleared(), *(self.blocks.snapshot() if self.blocks else (engine.load(),))]
        for other, request in self.open.items():
            if other.origin is not reply.origin:
                snapshot.append(request.started)
                if request.prefilled:
                    snapshot.append(PrefillCompleted(request.started.request))
        return tuple(snapshot)

    def _forward_pass(self, rank: int) -> ForwardPass | None:
        return None if self._reporter is None else self._reporter.forward_pass(rank)

    def forward_passes(self) -> tuple[ForwardPass, ...]:
        """Of all ranks, now."""
        found = itertools.takewhile(lambda one: one is not None, map(self._forward_pass, itertools.count()))
        return tuple([one for one in found if one is not None])

    async def _watch(self, engine: Engine[Any]) -> None:
        """Publish the load when it has changed, and now and then to keep subscriptions alive, while there are any."""
        looks = 0
        since = 0  # looks since it was published
        while self._events or self._steps:
            await asyncio.sleep(LOAD_INTERVAL)
            looks, since, load = looks + 1, since + 1, engine.load()
            if load != self._last_load or since * LOAD_INTERVAL >= KEEP_ALIVE:
                self._last_load, since = load, 0
                self._events.publish(load)
            if self._steps and looks % STEP_LOOKS == 0:
                self._steps.flush(*[step for step in self.forward_passes() if not step.wall_time], load)
            elif not self._steps:
                engine.stepped = None
        self._watching = False
