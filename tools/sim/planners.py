"""Planners in simulated processes, one per node, over pools of workers: the real component, link and answers."""

import asyncio
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from dynamod.actor import Crashed, Reason
from dynamod.daemon.scaling import by_hand
from dynamod.discovery.keys import EXITED
from dynamod.discovery.view import View
from dynamod.features.planner.actor import PlannerComponent
from dynamod.features.planner.nodes import PlannerNodes
from dynamod.features.planner.pool import PlannedPool
from dynamod.features.planner.records import Order
from dynamod.message.discovery import PREFILL, DisaggregationMode
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.plan import ServicePlan

from .cluster import Cluster
from .etcd import SimulatedRegistry
from .orders import Orders
from .places import Node, Place
from .pool import GRAPH, Machine
from .pool_faults import WorkerTroubles
from .shape import PATHS, PREFILL_WORKERS, WORKERS, Event
from .wire import Process, SimulatedTransport

ATTRIBUTES = {WORKERS: "worker", PREFILL_WORKERS: "prefill_worker"}
"""As what the planner's service depends on them."""


def _service(component: str) -> dict[str, str]:
    namespace, name, _ = PATHS[component].split(".")
    return {"service": component, "namespace": namespace, "component": name}


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """Planners over the workers of a run. `config`: of the planners. `events`: faults of theirs.

    `replicas`: that each node begins with. `prefill`: the same of prefill workers, which are a pool of their own then.
    `devices`: of each node, of which a worker takes one; 0: it takes none. `startup`: seconds that workers take to
    start, on average. `clocks`: by how many seconds each node's clock is wrong. `strikes`: chance of an order at which
    its planner, or one that does it, is killed. `moods`: when somebody sets other limits, and to which number of them.
    """

    config: dict[str, Any]
    events: tuple[Event, ...]
    replicas: tuple[int, ...]
    devices: int
    startup: float
    clocks: tuple[float, ...]
    strikes: float
    moods: tuple[tuple[float, int], ...] = ()
    prefill: tuple[int, ...] = ()

    @property
    def components(self) -> dict[str, tuple[int, ...]]:
        """Of the pools, with the replicas that nodes begin with."""
        return {WORKERS: self.replicas, **({PREFILL_WORKERS: self.prefill} if self.prefill else {})}


class SimulatedPlanner(PlannerComponent):
    """The planner component of one node."""

    def __init__(
        self,
        process: Process,
        registry: SimulatedRegistry,
        transport: SimulatedTransport,
        scaling: ScalingPlan,
        orders: Orders,
        report: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.process, self.registry, self._transport = process, registry, transport
        self._seen, self._report = orders, report
        self.questions: dict[str, Callable[[dict[str, Any]], Any]] = {}
        context = SimpleNamespace(
            registry=registry,
            transport=transport,
            view=View(registry),
            questions=self.questions,
            rows=[],
            plan=SimpleNamespace(graph=GRAPH),
        )
        depends = {ATTRIBUTES[name]: _service(name) for name in scaling.components}
        plan = ServicePlan("Planner", {"namespace": "dynamo", "config": scaling.config, "depends": depends})
        super().__init__(ComponentContext(cast("Any", context), plan), clock)

    async def started(self) -> None:
        """As the real one, in a process of its own."""
        self.registry.watch(EXITED, self._transport.exited)
        await super().started()
        self._report("ready")

    async def stopping(self, reason: Reason) -> None:
        """Close the connections."""
        await super().stopping(reason)
        await self._transport.close()
        if isinstance(reason, Crashed) and not isinstance(reason.error, asyncio.CancelledError | TimeoutError):
            self._seen.log.violate("no internal errors", f"{self.process.name}: {reason}")
        self._report("stopped")

    async def _apply(self, component: str, order: Order) -> None:
        self._seen.begins(self, component, order)
        try:
            await super()._apply(component, order)
        finally:
            self._seen.ends(self, component)

    # What checks look at.

    @property
    def nodes(self) -> PlannerNodes | None:
        """Whom it knows; None before it has started."""
        return getattr(self, "_nodes", None)

    @property
    def active(self) -> bool:
        """Whether it decides."""
        return self.nodes is not None and self.nodes.active

    @property
    def pools(self) -> list[PlannedPool]:
        """What it plans."""
        return list(self._pools.values())

    def ordered(self, component: str) -> int:
        """The number of its last order; 0 before the first."""
        orders = self.nodes._mine.orders.get(component, {}) if self.nodes is not None else {}
        return max((order.number for order in orders.values()), default=0)

    @property
    def now(self) -> float:
        """Seconds of the epoch, by the clock of its node."""
        return self._clock()


class Planners:
    """The pool and the planners of a cluster: to be made before its nodes, and opened when they are there."""

    def __init__(self, cluster: Cluster, plan: ScalingPlan, random: random_module.Random) -> None:
        self._cluster, self.plan, self._random = cluster, plan, random
        self.machines: dict[int, Machine] = {}
        self.orders = Orders(cluster, self.machines, list(plan.components), plan.config, random, plan.strikes)
        self.orders.strike = self._strike
        orders = self.orders
        self._troubles = WorkerTroubles(cluster, random, plan.startup, orders.came_up, orders.ended, orders.fails)
        cluster.booted = self._booted
        cluster.makers["planner"] = self._planner

    def open(self) -> None:
        """Start the planners."""
        for node in self._cluster.nodes:
            self._cluster.add(f"planner{node.number}", node, "planner")
        for at, count in self.plan.moods:
            self._cluster.system_later(at, partial(self._limit, count, count))

    def _limit(self, least: int, most: int) -> None:
        self.orders.limited(least, most)
        self._asked("set", min=least, max=most)

    def _booted(self, node: Node) -> None:
        number = node.number
        for place in node.places.values():
            place.wanted = place.wanted and not place.pooled  # its graph begins anew
        gpus = dict.fromkeys(self.plan.components, int(self.plan.devices > 0))
        machine = Machine(self._cluster, node, gpus, self.plan.devices, lambda: self._joined(node))
        self.machines[number] = machine
        self.orders.disturbed()
        for component, replicas in self.plan.components.items():
            self._task(machine.runner.scale(component, replicas[number]), f"boot n{number}")

    def _joined(self, node: Node) -> bool:
        """Whether a daemon has its cluster. What processes know comes from their daemon, so both count."""
        place = self._cluster.places.get(f"planner{node.number}")
        own = place is None or place.registry is None or place.registry.connected
        return own and node.registry.connected

    def _planner(self, place: Place) -> SimulatedPlanner:
        cluster, number = self._cluster, place.node
        process = cluster.new_process(place)
        registry, link = place.registry, place.link
        assert registry is not None
        assert link is not None
        link.connection.owner.answer = self.machines[number].answer
        registry.ask = link.channel.ask
        transport = SimulatedTransport(cluster.wire, process, lambda _instance, _request: None)
        place.planner = planner = SimulatedPlanner(
            process,
            registry,
            transport,
            self.plan,
            self.orders,
            partial(cluster.reported, process),
            lambda: cluster.system.now() + self.plan.clocks[number],
        )
        return planner

    def _strike(self, planner: SimulatedPlanner, seconds: float) -> None:
        """Kill a planner in the middle of an order."""
        place = self._cluster.places[f"planner{planner.process.node}"]
        process = planner.process
        self._cluster.system_later(seconds, lambda: self._cluster.kill(place) if place.process is process else None)

    def _task(self, work: Any, name: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # the node is gone, or has too few devices
                self._cluster.log("by hand", f"{name}: {type(error).__name__}: {error}")

        self._cluster.system.root.context.task(guarded(), name)

    # Faults.

    def happen(self, event: Event, node: Node, until: Callable[[float, Callable[[], object]], None]) -> None:
        """One of the faults of planners and their pool. `until(seconds, end)`: end it then, or when all is healed."""
        cluster = self._cluster
        match event.fault:
            case "planner":
                there = cluster.alive("planner")
                deciding = [place for place in there if place.planner is not None and place.planner.active]
                chosen = deciding if deciding and event.other < 0.7 else there
                if chosen:
                    cluster.kill(chosen[int(event.which * len(chosen))])
            case "start-fail":
                self.orders.start_failed = True
                most = self.plan.config["max-gpu-budget"]
                self._limit(most, most)  # so that some are to start
                self._troubles.do_not_start(event, node, until)
            case "stuck-drain":
                self._troubles.do_not_end(event, until)
            case _:
                self._by_hand(event, node, until)

    def _by_hand(self, event: Event, node: Node, until: Callable[[float, Callable[[], object]], None]) -> None:
        orders, kind = self.orders, int(event.other * 4)
        stays = event.chance > 0.2  # what somebody has done, and does not take back
        if kind == 0:
            self._asked("pause")
            orders.by_hand.add("paused")
            if not stays:
                until(event.lasts, lambda: self._asked("resume"))
        elif kind == 1:
            self._limit(1 + int(event.which * 3), 3 + int(event.which * 4))
        elif node.alive and not node.frozen:
            self._scaled(event, self.machines[node.number])
            if not stays:
                until(event.lasts, lambda: self._asked("resume"))

    def _scaled(self, event: Event, machine: Machine) -> None:
        """Somebody has a node run one more or fewer, or one of its workers change its role."""
        components = list(self.plan.components)
        component = components[int(event.chance * 100) % len(components)]
        pool, node = machine.pool(component), machine.node.number
        self.orders.by_hand.add("manual")
        self.orders.disturbed()
        if len(components) > 1 and pool.replicas and event.other > 0.9:
            one = pool.replicas[int(event.which * len(pool.replicas))]
            role: DisaggregationMode = "aggregated" if one.role == PREFILL else PREFILL
            self._cluster.log("by hand", f"{component}.{one.replica} on n{node} becomes {role}")
            self._task(_switched_by_hand(machine, component, one.replica, role), f"switch n{node}")
            return
        count = max(0, pool.wanted + (1 if event.which < 0.6 else -1))
        self._cluster.log("by hand", f"{count} of {component} on n{node}")
        self._task(_scaled_by_hand(machine, component, count), f"scale n{node}")

    def _asked(self, action: str, **arguments: int) -> None:
        """What somebody says to the planners of all nodes."""
        self._cluster.log("by hand", f"{action} {arguments or ''}")
        self.orders.disturbed()
        if action == "resume":
            self.orders.resumed()
        for place in self._cluster.alive("planner"):
            if place.planner is not None and "planner" in place.planner.questions:
                self._task(place.planner.questions["planner"]({"action": action, **arguments}), action)


async def _scaled_by_hand(machine: Machine, component: str, count: int) -> None:
    with by_hand(machine.runner, component, count):
        await machine.runner.scale(component, count, 2.0)


async def _switched_by_hand(machine: Machine, component: str, replica: int, role: DisaggregationMode) -> None:
    with by_hand(machine.runner, component):
        await machine.runner.switch(f"{component}.{replica}", role, 2.0)
