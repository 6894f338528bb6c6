"""Planners of one graph on several nodes: the oldest decides, each has its own daemon do what concerns its node.

They know each other by their records in the registry, which go with their leases.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import msgspec

from dynamod.discovery.base import Registry
from dynamod.discovery.records import decoded
from dynamod.message.pools import Pool
from dynamod.transport.base import Spawn

from .reconcile import Change
from .records import PLANNERS, Order, PlannerRecord, PoolControl

Apply = Callable[[str, Order], Coroutine[Any, Any, None]]
"""Does an order for our node, for a component. Raises nothing."""

LISTED = 6.0
"""Seconds for which the registry may list workers that ended while our node was alone: longer than its grace."""


class PlannerNodes:
    """`patience`: seconds that an order may take; then it counts as done. `clock`: seconds of the epoch."""

    def __init__(
        self,
        registry: Registry,
        place: tuple[str, str, int],
        node: str,
        apply: Apply,
        spawn: Spawn,
        patience: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        namespace, graph, lease = place
        self._registry, self._node, self._apply, self._spawn, self._patience = registry, node, apply, spawn, patience
        self._clock = clock
        prefix = f"{PLANNERS}{namespace}/{graph}/"
        self._key = f"{prefix}{lease:x}"
        self._mine = PlannerRecord(node=node, since=clock())
        self._others: dict[str, PlannerRecord] = {}
        self._ordered: dict[str, float] = {}  # when, by component
        self._doing: dict[tuple[str, str], tuple[int, float]] = {}  # by planner and component: what it does, since when
        self._now = asyncio.get_running_loop().time
        self.changed = self._now()
        """When a planner came or went, or LISTED after the time when our node was alone: monotonic seconds.

        After it others may not have told yet what there is on their nodes, and what they still do.
        """
        self.held: Mapping[str, str] = {}
        """Why the planner that decides, or did before us, changes nothing, by component."""
        self._told = b""  # our record, as it was put last
        registry.watch(prefix, self._changed)
        self._put()

    @property
    def active(self) -> bool:
        """Whether we decide."""
        return all((self._mine.since, self._key) < (one.since, key) for key, one in self._others.items())

    def pools(self, component: str) -> dict[str, Pool]:
        """The component's processes, by node."""
        return {one.node: one.pools[component] for one in self._records() if component in one.pools}

    def _records(self) -> list[PlannerRecord]:
        """By age: the newest planner of a node tells its state. The record of a dead planner stays for a while."""
        return [*sorted(self._others.values(), key=lambda one: one.since), self._mine]

    def tell(self, pools: Mapping[str, Pool] | None, done: Mapping[str, int] | None = None) -> None:
        """The pools of our node, by component (None: as they were), and the orders that have been done."""
        pools, done = self._mine.pools if pools is None else pools, {**self._mine.done, **(done or {})}
        if any(pool.alone for pool in pools.values()):
            self.unsure()
        self._mine = msgspec.structs.replace(self._mine, pools=dict(pools), done=done)
        self._put()
        self._learn(self._key, self._mine)

    def unsure(self) -> None:
        """We have heard nothing for a while: workers that have ended meanwhile stay listed for some seconds."""
        self.changed = self._now() + LISTED

    def _newest(self, component: str) -> int:
        """The number of the last order for a component, of the planners that there are."""
        records = self._records()
        given = [order.number for one in records for order in one.orders.get(component, {}).values()]
        return max([*given, *(one.begun.get(component, 0) for one in records)], default=0)

    def order(self, component: str, changes: Mapping[str, Change]) -> None:
        """Have nodes run so many processes, or have some of them change their role."""
        number = max(self._newest(component) + 1, int(self._clock() * 1000))
        since = {one.node: one.since for one in self._records()}
        orders = {
            node: Order(
                number=number,
                since=since[node],
                replicas=change.replicas,
                leave=change.leave,
                switch=change.switch,
                role=change.role,
            )
            for node, change in changes.items()
            if node in since
        }
        self._ordered[component] = self._now()
        self._mine = msgspec.structs.replace(self._mine, orders={**self._mine.orders, component: orders})
        self._put()
        self._follow(self._mine)

    def hold(self, held: Mapping[str, str]) -> None:
        """Publish why this planner changes nothing, by component, for the planner that takes over."""
        self._mine = msgspec.structs.replace(self._mine, held=dict(held))
        self._put()

    def control(self, component: str) -> PoolControl:
        """What was asked last of any planner of the graph."""
        found = [one.control[component] for one in self._records() if component in one.control]
        return max(found, key=lambda one: one.at, default=PoolControl())

    def instruct(self, component: str, control: PoolControl) -> None:
        """Publish an instruction to all planners. Each planner keeps it for planners that start later."""
        self._mine = msgspec.structs.replace(self._mine, control={**self._mine.control, component: control})
        self._put()

    def pending(self, component: str) -> bool:
        """Whether a node has not done what it was ordered, by us or by the planner that decided before."""
        late = self._now() - self._patience
        if any(since > late for (_, name), (_, since) in self._doing.items() if name == component):
            return True
        if self._ordered.get(component, 0.0) <= late:
            return False
        return any(True for _ in self._undone(component))

    def _undone(self, component: str) -> Iterator[tuple[str, Order]]:
        """Our orders that nodes have not done."""
        done = {(one.node, one.since): one.done.get(component, 0) for one in self._records()}
        for node, order in self._mine.orders.get(component, {}).items():
            there = done.get((node, order.since), order.number)  # a planner that has gone does nothing more
            if there < order.number and order.number >= self._newest(component):  # else another has decided since
                yield node, order

    def promised(self, component: str) -> Counter[str]:
        """GPUs that our orders give to a component and that its nodes still list as free, by node."""
        pools, found = self.pools(component), Counter[str]()
        for node, order in self._undone(component):
            if (pool := pools.get(node)) is not None and order.replicas > pool.wanted:
                found[node] = (order.replicas - pool.wanted) * pool.gpus
        return found

    def _put(self) -> None:
        """Uptimes are left out: they would change it at each look."""
        still = {
            name: msgspec.structs.replace(
                pool, replicas=tuple(msgspec.structs.replace(one, uptime=0.0) for one in pool.replicas)
            )
            for name, pool in self._mine.pools.items()
        }
        value = msgspec.json.encode(msgspec.structs.replace(self._mine, pools=still))
        if value != self._told:
            self._told = value
            self._registry.put(self._key, value)

    def _changed(self, key: str, value: bytes | None) -> None:
        if key == self._key:
            return
        record = decoded(key, value, PlannerRecord)
        if (record is None) != (key not in self._others):
            self.changed = max(self.changed, self._now())
        if record is not None:
            self._others[key] = record
        else:
            self._others.pop(key, None)
        if not self.active:
            self.held = min(self._others.items(), key=lambda one: (one[1].since, one[0]))[1].held
        if record is None:
            for doing in [doing for doing in self._doing if doing[0] == key]:
                del self._doing[doing]
            return
        self._learn(key, record)
        if not self.active:
            self._follow(record)

    def _learn(self, key: str, record: PlannerRecord) -> None:
        """What is being done."""
        for name, number in record.begun.items():
            if record.done.get(name, 0) >= number:
                self._doing.pop((key, name), None)
            elif self._doing.get((key, name), (0, 0.0))[0] != number:
                self._doing[key, name] = number, self._now()

    def _follow(self, record: PlannerRecord) -> None:
        """Do what it orders for our node."""
        for component, orders in record.orders.items():
            order, begun = orders.get(self._node), self._mine.begun
            if order is None or order.since != self._mine.since or order.number <= begun.get(component, 0):
                continue
            if order.number < self._newest(component):
                continue  # its planner was away, and another has decided meanwhile
            self._mine = msgspec.structs.replace(self._mine, begun={**begun, component: order.number})
            self._put()
            self._learn(self._key, self._mine)
            self._spawn(self._apply(component, order), f"scale {component}")
