"""What planners order, and whether they may: looked at when an order is begun, and when all is over."""

import contextlib
import random as random_module
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.discovery.keys import INSTANCES
from dynamod.features.planner.pool import PlannedPool
from dynamod.features.planner.reconcile import BACKOFF
from dynamod.features.planner.records import PLANNERS, Order
from dynamod.features.role_switch.decision import kind_of
from dynamod.message.discovery import PREFILL, Instance
from dynamod.message.pools import Pool

from .cluster import Cluster
from .pool import Machine
from .shape import PREFILL_WORKERS, WORKERS

if TYPE_CHECKING:
    from .planners import SimulatedPlanner

_INSTANCE = msgspec.json.Decoder(Instance)

KINDS = {WORKERS: "decode", PREFILL_WORKERS: PREFILL}
"""Of pools, by component: what its workers are for when they start first."""

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
    leave: tuple[int, ...] = ()


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    order: int = 0
    resumed: float = 0.0  # the time of the last `resume` that the planner knew then


class Orders:
    """`strike(planner, seconds)`: a planner is to be killed so soon. `by_hand`: what somebody has done to the pool."""

    def __init__(
        self,
        cluster: Cluster,
        machines: Mapping[int, Machine],
        components: Sequence[str],
        config: Mapping[str, Any],
        random: random_module.Random,
        strikes: float,
    ) -> None:
        self.log, self._cluster, self._machines, self._config = cluster.log, cluster, machines, config
        self._components = components
        self._random, self._strikes = random, strikes
        self._limits = [(config["min-endpoint"], config["max-gpu-budget"])]
        self._running: dict[tuple[SimulatedPlanner, str], _Running] = {}
        self._failures: dict[tuple[SimulatedPlanner, str], _Failures] = {}
        self._disturbed = 0.0
        self._up = 0.0
        self.strike: Callable[[SimulatedPlanner, float], None] = lambda _planner, _seconds: None
        self.by_hand: set[str] = set()
        self.start_failed = False
        self._failed_at: dict[str, float] = {}  # workers that did not start, and stay down, by the name of their place
        self.count = self.switches = 0

    def disturbed(self) -> None:
        """Somebody else has changed the pool, or what planners want."""
        self._disturbed = self._cluster.system.now()

    def resumed(self) -> None:
        """Somebody wants planners to go on: what has failed is tried again at once."""
        self._failures.clear()

    def limited(self, least: int, most: int) -> None:
        """Somebody has set other limits: both count, as a node that begins anew has forgotten them."""
        self._limits.append((least, most))

    def fails(self, place: str) -> None:
        """A worker does not start."""
        self._failed_at[place] = self._cluster.system.now()

    def came_up(self) -> None:
        """A worker of the pool is ready."""
        self._up = self._cluster.system.now()

    # Orders.

    def begins(self, planner: "SimulatedPlanner", component: str, order: Order) -> None:
        """A planner begins to do what it was ordered, perhaps by itself."""
        name, now = planner.process.name, self._cluster.system.now()
        self.count += 1
        self.switches += bool(order.switch)
        what = f"{order.switch} become {order.role}" if order.switch else f"{order.replicas}, without {order.leave}"
        self.log("order", f"{name} does {order.number} of {component}: {what}")
        self._alone(planner, order, now)
        for (other, theirs), running in self._running.items():
            known = other.process.alive and not other.process.frozen and other.registry.session == running.session != 0
            if theirs == component and known and running.number != order.number and planner.registry.connected:
                what = f"{name} begins {order.number}, {other.process.name} still does {running.number}"
                self.log.violate("one order at a time", f"{what} of {component}")
        self._limits_hold(planner, component, order, now)
        self._running[planner, component] = _Running(order.number, planner.registry.session, order.leave)
        if self._random.random() < self._strikes:
            giver = self._giver(component, order) or planner
            self.strike(giver if self._random.random() < 0.6 else planner, self._random.choice((0.0, 0.001, 0.1, 0.5)))

    def ends(self, planner: "SimulatedPlanner", component: str) -> None:
        """It is done, or could not be done, or the planner is no more."""
        self._running.pop((planner, component), None)

    def ended(self, process: str, requests: int, in_good_order: bool) -> None:
        """A worker of the pool ends with so many open requests."""
        if requests and in_good_order:
            self.log.violate("drains let requests finish", f"{process} ends with {requests} requests")

    def _alone(self, planner: "SimulatedPlanner", order: Order, now: float) -> None:
        registry = planner.registry
        if not registry.connected and now - registry.dropped > ALONE:
            what = f"{planner.process.name} does {order.number} without the registry since {registry.dropped:.3f}"
            self.log.violate("nothing is scaled alone", what)

    def _giver(self, component: str, order: Order) -> "SimulatedPlanner | None":
        for place in self._cluster.alive("planner"):
            if place.planner is not None and place.planner.ordered(component) == order.number:
                return place.planner
        return None

    def _limits_hold(self, planner: "SimulatedPlanner", component: str, order: Order, now: float) -> None:
        pools = self._pools()
        here = pools.get((planner.process.node, component))
        if here is None:
            return
        giver, calm = (self._giver(component, order) or planner, component), now - self._disturbed > NEWS
        failed = {one.replica for one in here.replicas if one.state == "Fatal"}
        names = {one: f"n{planner.process.node}.{component}{one}" for one in failed.intersection(order.leave)}
        if any(
            now - self._failed_at.get(name, 0.0) > self._config["metric-pulling-interval"] for name in names.values()
        ):
            found = self._failures.setdefault(giver, _Failures())
            if found.order != order.number:  # else that of another node
                heard = _resumed(*giver)
                found.count = (found.count if found.last > self._up and found.resumed == heard else 0) + 1
                found.order, found.last, found.resumed = order.number, now, heard
        if names:  # perhaps the giver has not learnt yet that they have failed
            return
        before, after = here.wanted, here.wanted if order.switch else order.replicas
        going = {
            ((at.process.node, name), one) for (at, name), running in self._running.items() for one in running.leave
        }
        others = [
            one
            for at, pool in pools.items()
            if at[1] != component
            for one in pool.replicas
            if (at, one.replica) not in going  # it drains within the same moment
        ]
        total = sum(pool.wanted for at, pool in pools.items() if at[1] == component) - before + after
        total += sum(one.state not in ("Draining", "Fatal") for one in others)  # what is given up there goes
        least, most = min(one for one, _ in self._limits), max(one for _, one in self._limits)
        what = f"{planner.process.name} does {order.number} of {component}: {before} become {after} here"
        if after > before and total > most and calm:
            self.log.violate("within the budget", f"{what}, {total} in all, {most} is the most")
        if calm:
            for kind, left in self._left(pools, here, component, order).items():
                if left < least:
                    self.log.violate("at least the minimum", f"{what}, {left} for {kind}, {least} is the least")
        found = self._failures.get(giver, _Failures())
        due = found.last + BACKOFF * 2 ** (found.count - 1) - 1.0
        seen = self._up + self._config["adjustment-interval"] + self._config["metric-pulling-interval"]
        tried = found.count and found.last > seen  # else a planner may learn after the failure that a worker is ready
        tried = tried and found.resumed == _resumed(*giver)  # else a `resume` came late, from a node that was away
        if after > before and tried and now < due and "paused" not in self.by_hand:
            self.log.violate("failed starts are not repeated at once", f"{what}; {found.count} failures before")

    def _left(
        self, pools: Mapping[tuple[int, str], Pool], here: Pool, component: str, order: Order
    ) -> Mapping[str, int]:
        """How many workers stay of each kind of which some go, by an order for a pool."""
        going = set(order.switch) | set(order.leave)
        gone = Counter(kind_of(one.role, KINDS[component]) for one in here.replicas if one.replica in going)
        if not order.switch and order.replicas < here.wanted and not order.leave:
            gone[KINDS[component]] = here.wanted - order.replicas
        there = Counter(
            kind_of(one.role, KINDS[name])
            for (_, name), pool in pools.items()
            for one in pool.replicas
            if one.state != "Draining"
        )
        there.update(self._listed({f"n{number}" for number, _ in pools}))
        return {kind: there[kind] - count for kind, count in gone.items()}

    def _listed(self, nodes: Collection[str]) -> Iterator[str]:
        """The kinds of workers on other nodes: without a planner there they are known until their leases end."""
        ours = {f"n{node.number}" for node in self._cluster.nodes} - {*nodes}
        for _, value in self._cluster.etcd.store.items(INSTANCES):
            with contextlib.suppress(msgspec.MsgspecError):  # others may put what they like
                found = _INSTANCE.decode(value)
                if found.node in ours:
                    yield kind_of(found.pool, KINDS[WORKERS])

    def _pools(self) -> dict[tuple[int, str], Pool]:
        """Of nodes whose planner is there and is known to the others."""
        stored = {int(key.rpartition("/")[2], 16) for key, _ in self._cluster.etcd.store.items(PLANNERS)}
        return {
            (place.node, name): self._machines[place.node].pool(name)
            for place in self._cluster.alive("planner")
            if place.registry is not None and place.registry.connected and place.registry.lease in stored
            for name in self._components
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
        return next((why for pool in planner.pools if (why := self._unsettled(planner, pool))), "")

    def _unsettled(self, planner: "SimulatedPlanner", pool: PlannedPool) -> str:
        status, name = pool.status(), f"{planner.process.name} for {pool.component}"
        if not pool.records:
            return f"{name} has not decided anything"
        record = pool.records[-1]
        age = planner.now - record.at
        if age > 3 * self._config["adjustment-interval"] + 1.0:
            return f"{name} has decided nothing for {age:.1f} s"
        if status["state"] != "active":
            held = f"{name} is {status['state']}, and nobody has done that"
            return "" if status["state"] in self.by_hand else held
        if status["in_progress"]:
            return f"{name} still waits for what it has ordered"
        there = {name: [machine.pool(name) for machine in self._machines.values()] for name in self._components}
        workers = [
            (one, kind_of(one.role, KINDS[home])) for home, all_ in there.items() for at in all_ for one in at.replicas
        ]
        states = [one.state for one, kind in workers if kind == pool.kind or len(there) == 1]
        wanted = sum(state != "Draining" for state in states)
        if record.refused == "workers_fail" and self.start_failed:
            return ""
        if record.refused == "no_devices" and not any(one.free for one in there[pool.component]):
            return ""
        full = record.refused == "budget_used" and len(workers) >= self._config["max-gpu-budget"]
        if record.refused and not full:
            return f"{name} does not do what it wants: {record.refused}"
        if not (wanted == record.tick.target or full) or wanted != len(states) or set(states) - {"Ready"}:
            return f"{name} wants {record.tick.target} workers, there are {wanted}: {', '.join(states)}"
        return ""


def _resumed(planner: "SimulatedPlanner", component: str) -> float:
    """The time of the last `resume` that the planner of a pool knows, in seconds of the epoch."""
    return next((pool.control.resumed for pool in planner.pools if pool.component == component), 0.0)
