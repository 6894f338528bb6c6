"""What planners order, and whether they may: looked at when an order is begun, and when all is over."""

import random as random_module
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamod.discovery.keys import PLANNERS
from dynamod.message.pools import Order, Pool
from dynamod.planner.reconcile import BACKOFF

from .cluster import Cluster
from .pool import Machine

if TYPE_CHECKING:
    from .planners import SimulatedPlanner

COMPONENT = "Worker"

ALONE = 1.0
"""Seconds without the registry after which a planner knows it."""

NEWS = 2.0
"""Seconds in which planners have learnt what others than planners have changed."""

SETTLED = 60.0
"""Seconds behind the last request in which a pool becomes what its planner wants, without any fault."""


@dataclass(slots=True)
class _Running:
    number: int
    session: int  # with the registry, when it was begun


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    order: int = 0


class Orders:
    """`strike(planner, seconds)`: a planner is to be killed so soon. `by_hand`: what somebody has done to the pool."""

    def __init__(
        self,
        cluster: Cluster,
        machines: Mapping[int, Machine],
        config: Mapping[str, Any],
        random: random_module.Random,
        strikes: float,
    ) -> None:
        self.log, self._cluster, self._machines, self._config = cluster.log, cluster, machines, config
        self._random, self._strikes = random, strikes
        self._limits = [(config["min-endpoint"], config["max-gpu-budget"])]
        self._running: dict[SimulatedPlanner, _Running] = {}
        self._failures: dict[SimulatedPlanner, _Failures] = {}
        self._disturbed = 0.0
        self._up = 0.0
        self.strike: Callable[[SimulatedPlanner, float], None] = lambda _planner, _seconds: None
        self.by_hand: set[str] = set()
        self.start_failed = False
        self.count = 0

    def disturbed(self) -> None:
        """Somebody else has changed the pool, or what planners want."""
        self._disturbed = self._cluster.system.now()

    def limited(self, least: int, most: int) -> None:
        """Somebody has set other limits: both count, as planners forget them when they end."""
        self._limits.append((least, most))

    def came_up(self) -> None:
        """A worker of the pool is ready."""
        self._up = self._cluster.system.now()

    # Orders.

    def begins(self, planner: "SimulatedPlanner", order: Order) -> None:
        """A planner begins to do what it was ordered, perhaps by itself."""
        name, now = planner.process.name, self._cluster.system.now()
        self.count += 1
        self.log("order", f"{name} does {order.number}: {order.replicas} workers, without {order.leave}")
        self._alone(planner, order, now)
        for other, running in self._running.items():
            known = other.process.alive and not other.process.frozen and other.registry.session == running.session != 0
            if known and running.number != order.number and planner.registry.connected:
                what = f"{name} begins {order.number}, {other.process.name} still does {running.number}"
                self.log.violate("one order at a time", what)
        self._limits_hold(planner, order, now)
        self._running[planner] = _Running(order.number, planner.registry.session)
        if self._random.random() < self._strikes:
            giver = self._giver(order) or planner
            self.strike(giver if self._random.random() < 0.6 else planner, self._random.choice((0.0, 0.001, 0.1, 0.5)))

    def ends(self, planner: "SimulatedPlanner") -> None:
        """It is done, or could not be done, or the planner is no more."""
        self._running.pop(planner, None)

    def ended(self, process: str, requests: int, in_good_order: bool) -> None:
        """A worker of the pool ends with so many open requests."""
        if requests and in_good_order:
            self.log.violate("drains let requests finish", f"{process} ends with {requests} requests")

    def _alone(self, planner: "SimulatedPlanner", order: Order, now: float) -> None:
        registry = planner.registry
        if not registry.connected and now - registry.dropped > ALONE:
            what = f"{planner.process.name} does {order.number} without the registry since {registry.dropped:.3f}"
            self.log.violate("nothing is scaled alone", what)

    def _giver(self, order: Order) -> "SimulatedPlanner | None":
        for place in self._cluster.alive("planner"):
            if place.planner is not None and place.planner.ordered == order.number:
                return place.planner
        return None

    def _limits_hold(self, planner: "SimulatedPlanner", order: Order, now: float) -> None:
        pools = self._pools()
        here = pools.get(planner.process.node)
        if here is None:
            return
        before, after = here.wanted, order.replicas
        total = sum(pool.wanted for pool in pools.values()) - before + after
        failed = {one.replica for one in here.replicas if one.state == "Fatal"}
        if failed.intersection(order.leave):
            found = self._failures.setdefault(self._giver(order) or planner, _Failures())
            if found.order != order.number:  # else that of another node
                found.count = (found.count if found.last > self._up else 0) + 1
                found.order, found.last = order.number, now
            return
        least, most = min(one for one, _ in self._limits), max(one for _, one in self._limits)
        calm = now - self._disturbed > NEWS
        what = f"{planner.process.name} does {order.number}: {before} become {after} here, {total} in all"
        if after > before and total > most and calm:
            self.log.violate("within the budget", f"{what}, {most} is the most")
        elsewhere = sum(
            one.state == "Ready"  # who has no planner there is known when it is ready
            for number, machine in self._machines.items()
            if number not in pools
            for one in machine.pool(COMPONENT).replicas
        )
        if after < before and total + elsewhere < least and calm:
            self.log.violate("at least the minimum", f"{what}, {least} is the least")
        found = self._failures.get(self._giver(order) or planner, _Failures())
        due = found.last + BACKOFF * 2 ** (found.count - 1) - 1.0
        if after > before and found.count and found.last > self._up and now < due and "paused" not in self.by_hand:
            self.log.violate("failed starts are not repeated at once", f"{what}; {found.count} failures before")

    def _pools(self) -> dict[int, Pool]:
        """Of nodes whose planner is there and is known to the others."""
        stored = {int(key.rpartition("/")[2], 16) for key, _ in self._cluster.etcd.store.items(PLANNERS)}
        return {
            place.node: self._machines[place.node].pool(COMPONENT)
            for place in self._cluster.alive("planner")
            if place.registry is not None and place.registry.connected and place.registry.lease in stored
        }

    # At the end.

    def unsettled(self) -> str:
        """Why a pool is not as its planner wants it, without a reason that it gives; empty when it is."""
        there = [place.planner for place in self._cluster.alive("planner") if place.planner is not None]
        deciding = [planner for planner in there if planner.active]
        alive = self._cluster.alive("planner")
        places = [place for node in self._cluster.nodes if node.alive for place in node.places.values()]
        if any(place.kind == "planner" and place.wanted and place not in alive for place in places):
            return "a planner has not started again"
        if len(deciding) != 1:
            return f"{len(deciding)} of {len(there)} planners decide"
        (planner,) = deciding
        status, name = planner.pool.status(), planner.process.name
        if not planner.pool.records:
            return f"{name} has not decided anything"
        record = planner.pool.records[-1]
        age = planner.now - record.at
        if age > 3 * self._config["adjustment-interval"] + 1.0:
            return f"{name} has decided nothing for {age:.1f} s"
        if status["state"] != "active":
            held = f"{name} is {status['state']}, and nobody has done that"
            return "" if status["state"] in self.by_hand else held
        if status["in_progress"]:
            return f"{name} still waits for what it has ordered"
        pools = [machine.pool(COMPONENT) for machine in self._machines.values()]
        wanted, states = sum(pool.wanted for pool in pools), [one.state for pool in pools for one in pool.replicas]
        if record.refused == "workers_fail" and self.start_failed:
            return ""
        if record.refused == "no_devices" and not any(pool.free for pool in pools):
            return ""
        if record.refused:
            return f"{name} does not do what it wants: {record.refused}"
        if not wanted == record.tick.target == len(states) or set(states) - {"Ready"}:
            return f"{name} wants {record.tick.target} workers, there are {wanted}: {', '.join(states)}"
        return ""
