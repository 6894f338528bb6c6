"""The planner component: it decides how many workers each pool of its graph has, and has the daemon do it."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason
from dynamod.discovery.keys import CARDS, Address, card_key
from dynamod.discovery.records import keep
from dynamod.extension.installed import extensions
from dynamod.graph.typed import validate
from dynamod.ingress.subscriptions import EventSubscriptions
from dynamod.message.control import patience
from dynamod.message.discovery import LOAD_METRICS, PREFILL, Instance, ModelCard
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.kv_events import WorkerEvent
from dynamod.runtime.components.processes import Processes
from dynamod.runtime.context import ComponentContext
from dynamod.transport.waiting import comes

from .arima import prepare
from .connectors import Connector, connector
from .memos import PlannerMemos
from .metrics import rows
from .nodes import PlannerNodes
from .orders import PoolOrders
from .parking import Parking
from .pool import PlannedPool, Side
from .records import Order
from .settings import PlannerSettings, pool_kind
from .states import PoolStates
from .worker_view import WorkerView

log = logging.getLogger("dynamod.planner")

LIMITS = {"min": "least", "max": "most"}
"""What `dynamo planner set` takes, and what of `PoolControl` it is."""

LATE = 2.0
"""Seconds by which a look at the pools may be late: with more, nothing has been heard meanwhile."""

Key = tuple[str, int]
"""Component and lease."""


class PlannerComponent(Actor):
    """Follows the workers of the pools that its service depends on. One task looks at the pools, and decides unless the
    planner of another node does. `clock`: seconds of the epoch.
    """

    def __init__(self, ctx: ComponentContext, clock: Callable[[], float] = time.time) -> None:
        self._ctx, self._clock = ctx, clock
        self._settings: PlannerSettings = validate(PlannerSettings, ctx.config, ctx.name)
        self._pools: dict[str, PlannedPool] = {}
        self._places: dict[tuple[str, str], str] = {}  # namespace and component, as instances have them
        for attribute, info in ctx.service.spec.get("depends", {}).items():
            self._pools[info["service"]] = PlannedPool(info["service"], pool_kind(attribute), self._settings)
            self._places[info["namespace"], info["component"]] = info["service"]
        self._cards: dict[str, ModelCard] = {}
        self._ready: dict[int, ModelCard] = {}  # of ready workers, by lease
        self._subscriptions: EventSubscriptions
        self._nodes: PlannerNodes
        self._states: PoolStates
        self._parking: Parking
        self._woken = asyncio.Event()
        self._orders: PoolOrders
        self._connector: Connector

    async def started(self) -> None:
        """Follow the workers that are there, and begin to tick. Raises UserError without a pool."""
        context = self._ctx.process_context
        if not self._pools:
            name = self._ctx.name
            raise UserError(f"{name} has no pool to plan", f"write {name}.link(Worker) in the graph")
        if self._settings.load_predictor == "arima":
            await asyncio.to_thread(prepare)
        await context.registry.leased(timeout=60)
        spawn, clock = self.context.task, asyncio.get_running_loop().time
        self._subscriptions = EventSubscriptions(context.transport, spawn, clock, self._events, steps=True)
        context.registry.watch(CARDS, keep(self._cards, ModelCard))
        context.questions["planner"] = self._answer
        context.rows.append(self._rows)
        prefill = [name for name, pool in self._pools.items() if pool.kind == PREFILL]
        self._connector = connector(self._settings, context.registry, self._ctx.namespace, prefill)
        place = (self._ctx.namespace, context.plan.graph, context.registry.lease)
        longest = patience(self._settings.drain_timeout)
        self._nodes = PlannerNodes(
            context.registry, place, context.registry.node, self._apply, spawn, longest, self._clock
        )
        memos = PlannerMemos(Processes(context.registry), self._pools.values(), self._nodes.instruct)
        self._states = PoolStates(self._connector, memos, self._settings.memory)
        self._orders = self._pool_orders()
        context.view.on_change(self._follow)
        places = {component: f"dyn://{Address(*place)}" for place, component in self._places.items()}
        self._parking = Parking(self._ctx, self.context, places, self._woken.set)
        self._park()
        self._follow()
        self.context.task(self._run(), "ticks")

    def _pool_orders(self) -> PoolOrders:
        """Orders as another feature makes them, where a worker can be told to change its role."""
        makers = extensions("planner") if self._connector.switches else ()
        found: list[PoolOrders] = [make(self._pools.values(), self._nodes, clock=self._clock) for make in makers]
        return found[0] if found else PoolOrders(self._nodes)

    async def stopping(self, reason: Reason) -> None:
        """Let go of the workers' events."""
        if hasattr(self, "_subscriptions"):
            self._subscriptions.close()

    # What is seen.

    def _follow(self) -> None:
        instances = self._ctx.process_context.view.all_instances()
        there = {key: instance for instance in instances if (key := self._key(instance)) is not None}
        for name, pool in self._pools.items():
            for lease in [lease for lease in pool.workers if (name, lease) not in there]:
                del pool.workers[lease]
                self._subscriptions.drop((name, lease))
        self._ready.clear()
        for (name, lease), instance in there.items():
            card = self._cards.get(card_key(instance))
            if card is not None:
                self._ready[lease] = card
            if card is not None and lease not in self._pools[name].workers:
                self._pools[name].workers[lease] = WorkerView(card.kv_cache_block_size or 0, instance.node)
                self._subscriptions.follow((name, lease), instance)

    def _park(self) -> None:
        for name, pool in self._pools.items():
            if pool.kind != PREFILL and not pool.controller.settings.min_endpoint:
                self._parking.keep(name)

    def _key(self, instance: Instance) -> Key | None:
        name = self._places.get((instance.namespace, instance.component))
        if name is None or instance.endpoint == LOAD_METRICS or instance.state != "ready":
            return None
        return self._orders.pool_of(name, instance), instance.instance_id

    def _events(self, key: Key, events: Sequence[WorkerEvent], snapshot: bool) -> None:
        worker = self._pools[key[0]].workers.get(key[1])
        if worker is not None:
            worker.take(events, snapshot)

    # What is done.

    async def _run(self) -> None:
        clock, due, active = asyncio.get_running_loop().time, 0.0, True
        interval, looked = self._settings.adjustment_interval, clock()
        while True:
            pause = min(self._settings.metric_pulling_interval, interval)
            if await comes(self._woken, pause):
                self._woken.clear()
                due = 0.0
            self._follow()  # a card may have come after its instance
            self._subscriptions.look()
            standby = self._connector.everywhere and not self._nodes.active
            states = {} if standby else await self._states.look(self._pools)
            if states is None:
                continue
            self._nodes.tell(states)
            now = clock()
            if now - looked > self._settings.metric_pulling_interval + LATE:
                self._nodes.unsure()  # the machine has slept, or the daemon was away
            looked = now
            calm = now >= self._nodes.changed + interval
            for name, pool in self._pools.items():
                self._heed(name, pool)
                if name in states:
                    pool.look(now, states[name])
                self._orders.follow(pool)
                if not calm:
                    pool.reconciler.settled()  # a node may have begun anew: the pool was not scaled by hand
            self._park()
            if active != (active := self._nodes.active):
                log.info("this planner decides from now on" if active else "the planner of another node decides")
                for pool in self._pools.values() if active else ():
                    pool.reconciler.take_over(self._nodes.held.get(pool.component, ""))
            self._nodes.hold({name: "manual" for name, pool in self._pools.items() if pool.reconciler.manual})
            alone = any(state.alone for state in states.values())  # nothing is done, which is to be seen
            if now < due or not active or not (calm or alone):
                continue
            due = now + interval
            self._tick(now)

    def _tick(self, now: float) -> None:
        sides = [self._propose(pool, now) for pool in self._pools.values()]
        if self._settings.role_switch and self._orders.switch(sides, self._settings.max_gpu_budget, self._ready):
            return
        taken = Counter[str]()  # GPUs, by node
        for component in self._pools:
            taken.update(self._nodes.promised(component))
        grown = False
        for pool in self._pools.values():
            self._orders.follow(pool)  # the pool before it may have touched its component
            grown = self._decide(pool, taken, grown=grown) or grown

    def _propose(self, pool: PlannedPool, now: float) -> Side:
        needed = any(other.busy for other in self._pools.values() if other is not pool)
        return pool.propose(now, self._orders.states(pool), wanted=self._parking.wanted(pool.component), needed=needed)

    def _decide(self, pool: PlannedPool, taken: Counter[str], *, grown: bool) -> bool:
        """Change a pool; returns whether the pool has grown.

        `taken`: GPUs that pools have taken or will take, by node. `grown`: one of them has grown in this tick; what
        memory that leaves is not known before the next look.
        """
        others = sum(other.expected * other.gpus for other in self._pools.values() if other is not pool)
        states = self._orders.states(pool)
        there = sum(state.wanted for state in states.values())
        may_grow = not self._settings.memory or not grown
        room = (self._settings.max_gpu_budget - others) // pool.gpus if may_grow else 0
        action = pool.decide(self._clock(), room, taken, "budget_used" if may_grow else "scaling_in_progress")
        more = {node: change.replicas - states[node].wanted for node, change in action.changes.items()}
        taken.update({node: count * states[node].gpus for node, count in more.items() if count > 0})
        record = pool.records[-1]
        refused = action.refused if self._parking.wanted(pool.component) else ""
        self._parking.tell(pool.component, record.startup, refused, record.last_error)
        if action.refused and (len(pool.records) < 2 or pool.records[-2].refused != action.refused):
            proposal = f"{record.ready + record.starting} -> {record.tick.target} workers"
            why = f": {record.last_error}" if record.last_error else ""
            log.info("%s: %s (%s) not done: %s%s", pool.component, proposal, record.tick.reason, action.refused, why)
        if action.changes:
            log.info(
                "%s: %d -> %d processes (%s; %d requests, %d prompt tokens wait, %d KV tokens of %d)",
                *(pool.component, there, record.replicas, record.tick.reason),
                *(record.arrived, record.queued, record.context, record.capacity),
            )
            self._orders.order(pool, action)
        return any(count > 0 for count in more.values())

    async def _apply(self, component: str, order: Order) -> None:
        """Have it done, and tell that it is."""
        try:
            await self._connector.scale(component, order)
        except (DynamodError, TimeoutError) as error:
            # A worker may end while it changes its role; the next look decides anew.
            level = logging.WARNING if order.switch else logging.ERROR
            done = "switched" if order.switch else "scaled"
            log.log(level, "%s could not be %s: %s", component, done, error or "no answer")
        self._nodes.tell(await self._states.look(self._pools), {component: order.number})

    # What is asked.

    async def _answer(self, arguments: dict[str, Any]) -> Any:
        """`action`: status, pause, resume, set (with `min`, `max`); `component`: one pool. Raises UserError."""
        wanted = str(arguments.get("component") or "").rpartition("/")[2]
        pools = [pool for name, pool in self._pools.items() if wanted in ("", name)]
        if not pools:
            raise UserError(f"no pool '{wanted}' is planned", f"planned: {', '.join(self._pools)}")
        match arguments.get("action", "status"):
            case "pause":
                self._instruct(pools, paused=True)
            case "resume":
                self._instruct(pools, paused=False)
            case "set":
                self._set(pools, {key: value for key, value in arguments.items() if key not in ("action", "component")})
            case "status":
                pass
            case other:
                raise UserError(f"a planner has no action '{other}'", "status, pause, resume, set")
        with contextlib.suppress(DynamodError, TimeoutError):  # else it is kept at the next look
            await self._states.memos.exchange()
        found = [
            {**pool.status(), "records": [msgspec.to_builtins(record) for record in pool.records]} for pool in pools
        ]
        return found if self._nodes.active else [{**one, "state": "standby"} for one in found]

    def _set(self, pools: Sequence[PlannedPool], given: dict[str, Any]) -> None:
        if not given or (unknown := given.keys() - LIMITS.keys()):
            raise UserError(f"set takes {' and '.join(LIMITS)}", f"not {', '.join(sorted(unknown))}" if given else "")
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or not (key == "max") <= value <= 256:
                raise UserError(f"{key} is {value!r}", f"a whole number from {int(key == 'max')} to 256")
        limits = {LIMITS[key]: value for key, value in given.items()}
        for pool in pools:
            settings = {"min_endpoint": limits.get("least"), "max_gpu_budget": limits.get("most")}
            pool.limited(**{name: value for name, value in settings.items() if value is not None})
        self._instruct(pools, **limits)

    def _instruct(self, pools: Sequence[PlannedPool], **what: Any) -> None:
        for pool in pools:
            at = max(self._clock(), pool.control.at + 0.001)  # the clock of another node may be fast
            resumed = at if what.get("paused") is False else pool.control.resumed
            pool.obey(control := msgspec.structs.replace(pool.control, at=at, resumed=resumed, **what))
            self._nodes.instruct(pool.component, control)

    def _heed(self, name: str, pool: PlannedPool) -> None:
        """Do what was asked of the planner of another node."""
        control = self._nodes.control(name)
        if control.at <= pool.control.at:
            return
        self._nodes.instruct(name, control)
        try:
            pool.obey(control)
        except UserError as error:
            log.warning("%s", error)

    def _rows(self) -> Iterator[tuple[str, dict[str, str], msgspec.Struct]]:
        return rows(self._pools.values())
