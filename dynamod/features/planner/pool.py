"""A pool of workers under a planner: what is seen at each tick, what is decided, and why."""

import math
from collections import deque
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dynamod.extension import installed
from dynamod.message.errors import UserError
from dynamod.message.pools import Pool
from dynamod.observe.bounded import bounded

from .controller import Controller, Tick
from .observation import Observation, WorkerLoad
from .reconcile import Action, Change, Pools, Reconciler, Refusal, starting
from .records import PoolControl
from .settings import PlannerSettings
from .worker_view import WorkerView

KEPT = 100
"""Ticks that can be explained."""

SMOOTH = 0.5
"""Weight of the last start-up time that was measured."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A tick. `at`: seconds of the epoch. `arrived`: requests since the one before. Tokens: `queued` to be computed,
    `context` in use, of `capacity`. `startup`: seconds that workers take to start. `replicas`: processes that there
    are to be from now on, None: as it is; `nodes`: by node, if there are several. `switched`: a worker that comes from
    another pool, or goes there. `refused`: why what was proposed is not done.
    """

    at: float
    ready: int
    starting: int
    failed: int
    arrived: int
    queued: int
    context: int
    capacity: int
    startup: float
    tick: Tick
    replicas: int | None = None
    nodes: dict[str, int] | None = None
    switched: str = ""
    refused: str = ""
    last_error: str = ""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at a tick. `least`: workers that it has at least. `refused`: why nothing may be changed now.

    `loads`: of the ready workers, by lease.
    """

    kind: str
    tick: Tick
    pools: Pools
    loads: Mapping[int, WorkerLoad]
    least: int
    refused: Refusal = ""


def _failed(pool: Pool, change: Change) -> int:
    """How many of the leaving workers are in state Fatal, so that they are not expected to become ready."""
    fatal = [one for one in pool.replicas if one.state == "Fatal"]
    return sum(one.replica in (change.guests if one.guest else change.leave) for one in fatal)


def _without(pool: Pool, taken: int) -> Pool:
    """A node's part of a pool, of whose free devices others have taken some."""
    if not taken or pool.free is None or not pool.gpus:
        return pool
    return msgspec.structs.replace(pool, free=max(0, pool.free - math.ceil(taken / pool.gpus)))


class StartTimes:
    """Measures how long processes of our node take to become ready."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # when processes were first seen, by number, until they are ready
        self._seen: Collection[int] | None = None  # processes at the last look

    def look(self, now: float, pool: Pool) -> list[float]:
        """Seconds of each process that has become ready since the last look. `now`: monotonic seconds."""
        there, took = {one.replica: one for one in pool.replicas}, list[float]()
        for replica, one in there.items():
            if one.state in ("Starting", "Restarting"):
                self._since.setdefault(replica, now)
            elif one.state == "Ready":
                since = self._since.pop(replica, None)
                if since is not None:
                    took.append(now - since)
                elif self._seen is not None and replica not in self._seen:
                    took.append(one.uptime)  # between two looks
        self._since = {replica: since for replica, since in self._since.items() if replica in there}
        self._seen = there.keys()
        return took


class PlannedPool:
    """`component`: the service's name in the graph. `kind`: of its workers, as PlannerSettings.least takes it."""

    def __init__(self, component: str, kind: str, settings: PlannerSettings) -> None:
        self.component, self.kind = component, kind
        self.workers: dict[int, WorkerView] = {}  # ready ones, by lease
        self.records: deque[Record] = deque(maxlen=KEPT)
        bounded(self, "explained ticks", KEPT, lambda one: len(one.records), "ticks", component)
        self._starts = StartTimes()
        self.expected = self._decided = 0
        """Workers that are there, or starting, as far as is known; the second: when something was done last."""
        self.switches = 0  # workers that have come from another pool
        self.control = PoolControl()
        self.gpus = 1
        """Of the budget that each worker takes: its GPUs, or one."""
        self._observed = Observation(now=0.0, ready=())
        self.reconciler = Reconciler(settings)
        self.controller: Controller
        self.use(settings)

    @property
    def busy(self) -> bool:
        """Whether requests were there at the last tick."""
        return self._observed.busy

    def use(self, settings: PlannerSettings) -> None:
        """Other settings from now on; what was learned stays."""
        self.settings = msgspec.structs.replace(settings, min_endpoint=settings.least(self.kind))
        settings = self._by_workers()
        self.reconciler.settings = settings
        if not self.records:
            self.controller = Controller(settings, self.kind)
        else:
            self.controller.settings = settings

    def _by_workers(self) -> PlannerSettings:
        """The settings as what decides has them: its budget is one of workers."""
        most = max(self.settings.max_gpu_budget // self.gpus, self.settings.min_endpoint, 1)
        return msgspec.structs.replace(self.settings, max_gpu_budget=most)

    def obey(self, control: PoolControl) -> None:
        """Do what people ask. Raises UserError for limits that cannot be."""
        before, self.control = self.control, control
        try:
            if (control.least, control.most) != (before.least, before.most):
                given = {"min_endpoint": control.least, "max_gpu_budget": control.most}
                self.use(self.limited(**{name: value for name, value in given.items() if value is not None}))
        finally:  # limits that cannot be leave the rest
            if control.resumed > before.resumed:
                self.reconciler.resume()
            self.reconciler.paused = control.paused

    def limited(self, **limits: int) -> PlannerSettings:
        """The settings with other limits. Raises UserError."""
        try:
            found = msgspec.structs.replace(
                self.settings, prefill_min_endpoint=None, decode_min_endpoint=None, **limits
            )
        except ValueError as error:
            raise UserError(f"planner of {self.component}: {error}") from None
        if not found.min_endpoint:
            installed.require("on_demand", f"planner of {self.component}: min-endpoint 0")
        if found.min_endpoint * self.gpus > found.max_gpu_budget:
            what = f"min-endpoint {found.min_endpoint} with {self.gpus} GPUs each"
            raise UserError(f"planner of {self.component}: {what} is above max-gpu-budget {found.max_gpu_budget}")
        return found

    def look(self, now: float, pool: Pool) -> None:
        """Measure how long workers of our node take to become ready. `now`: monotonic seconds."""
        for seconds in self._starts.look(now, pool):
            self.controller.startup += SMOOTH * (seconds - self.controller.startup)
            self.reconciler.came_up()

    def propose(self, now: float, pools: Pools, *, wanted: bool = False, needed: bool = False) -> Side:
        """What it should have: the first half of a tick. `now`: monotonic seconds.

        `wanted`: requests wait for workers. `needed`: other pools have requests, for which this one works.
        """
        if (gpus := max([1, *(pool.gpus for pool in pools.values())])) != self.gpus:
            self.gpus = gpus
            self.controller.settings = self.reconciler.settings = self._by_workers()
        # A node tells of all its processes. What the registry lists there besides ran before the node began anew.
        listed = {node: {one.lease for one in pool.replicas} for node, pool in pools.items()}
        loads = {
            lease: worker.load()
            for lease, worker in self.workers.items()
            if worker.tells and (worker.node not in listed or lease in listed[worker.node])
        }
        arrived = tuple(tokens for worker in self.workers.values() for tokens in worker.arrived())
        coming = starting(pools, loads.keys())
        seen = Observation(now=now, ready=tuple(loads.values()), starting=coming, arrived=arrived, wanted=wanted)
        self._observed = seen
        self.expected = max(seen.expected, self._decided) if self.reconciler.in_progress else seen.expected
        refused = self.reconciler.refusal(pools, loads)
        least = max(1, self.controller.settings.min_endpoint)  # a switch leaves no pool empty
        tick = self.controller.tick(msgspec.structs.replace(seen, wanted=wanted or needed))
        self._side = Side(kind=self.kind, tick=tick, pools=pools, loads=loads, least=least, refused=refused)
        return self._side

    def decide(
        self,
        at: float,
        room: int,
        taken: Mapping[str, int] = MappingProxyType({}),
        full: Refusal = "budget_used",
    ) -> Action:
        """Do what was proposed: the second half. `at`: seconds of the epoch. `room`: workers that there may be; `full`:
        why there may be no more. `taken`: GPUs that other pools have taken of nodes in this tick.
        """
        self._side = msgspec.structs.replace(
            self._side, pools={node: _without(pool, taken.get(node, 0)) for node, pool in self._side.pools.items()}
        )
        side, seen = self._side, self._observed
        target = min(side.tick.target, max(room, seen.expected))
        action = self.reconciler.decide(seen.now, target, side.pools, side.loads)
        if target < side.tick.target and not action.refused:
            action = msgspec.structs.replace(action, refused=full)
        after = {node: pool.wanted for node, pool in side.pools.items()}
        changed = sum(
            change.replicas - after[node] + _failed(side.pools[node], change) for node, change in action.changes.items()
        )
        after |= {node: change.replicas for node, change in action.changes.items()}
        if action.changes:
            self.expected = self._decided = max(0, self.expected + changed)
        self._record(at, side.tick, after, done=bool(action.changes), refused=action.refused)
        return action

    def switched(self, at: float, node: str, what: str, change: int) -> None:
        """Instead of `decide`: a worker on this node comes (1) from another pool, or goes (-1) there."""
        after = {node: pool.wanted for node, pool in self._side.pools.items()}
        after[node] = after.get(node, 0) + change
        self.expected = self._decided = self.expected + change
        self.switches += change > 0
        tick = msgspec.structs.replace(self._side.tick, reason="switch")
        self._record(at, tick, after, done=True, switched=what)

    def _record(self, at: float, tick: Tick, after: dict[str, int], *, done: bool, **what: str) -> None:
        seen, pools = self._observed, self._side.pools
        failed = [one for pool in pools.values() for one in pool.replicas if one.state == "Fatal"]
        self.records.append(
            Record(
                at=at,
                ready=len(seen.ready),
                starting=seen.starting,
                failed=len(failed),
                arrived=len(seen.arrived),
                queued=seen.queued,
                context=seen.context,
                capacity=sum(load.capacity for load in seen.ready),
                startup=self.controller.startup,
                tick=tick,
                replicas=sum(after.values()) if done else None,
                nodes=after if len(after) > 1 else None,
                last_error=next((one.last_error for one in failed), ""),
                **what,
            )
        )

    def status(self) -> dict[str, Any]:
        """Settings that can be changed, whether it acts, and the last tick."""
        settings, held = self.settings, self.reconciler
        return {
            "component": self.component,
            "state": held.held or "active",
            "min": settings.min_endpoint,
            "max": settings.max_gpu_budget,
            "in_progress": held.in_progress,
            "last": msgspec.to_builtins(self.records[-1]) if self.records else None,
        }
