"""Planners of one graph on several nodes: the oldest decides, each has its own daemon do what concerns its node.

They know each other by their records in the registry, which go with their leases.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from dynamod.discovery.base import Registry
from dynamod.discovery.keys import PLANNERS
from dynamod.discovery.records import decoded
from dynamod.message.pools import Order, PlannerRecord, Pool
from dynamod.planner.reconcile import Change
from dynamod.transport.base import Spawn

Apply = Callable[[str, Order], Coroutine[Any, Any, None]]
"""Does an order for our node, for a component. Raises nothing."""


class PlannerNodes:
    """`patience`: seconds that an order may take; then it counts as done."""

    def __init__(
        self, registry: Registry, place: tuple[str, str, int], node: str, apply: Apply, spawn: Spawn, patience: float
    ) -> None:
        namespace, graph, lease = place
        self._registry, self._node, self._apply, self._spawn, self._patience = registry, node, apply, spawn, patience
        prefix = f"{PLANNERS}{namespace}/{graph}/"
        self._key = f"{prefix}{lease:x}"
        self._mine = PlannerRecord(node=node, since=time.time())
        self._others: dict[str, PlannerRecord] = {}
        self._begun: dict[str, int] = {}  # number of the last order for our node, by component
        self._ordered: dict[str, float] = {}  # when, by component
        self._number = 0
        self._told = b""  # our record, as it was put last
        registry.watch(prefix, self._changed)
        self._put()

    @property
    def active(self) -> bool:
        """Whether we decide."""
        return all((self._mine.since, self._key) < (one.since, key) for key, one in self._others.items())

    def pools(self, component: str) -> dict[str, Pool]:
        """The component's processes, by node."""
        records = (*self._others.values(), self._mine)
        return {one.node: one.pools[component] for one in records if component in one.pools}

    def tell(self, pools: Mapping[str, Pool] | None, done: Mapping[str, int] | None = None) -> None:
        """The pools of our node, by component (None: as they were), and the orders that have been done."""
        pools, done = self._mine.pools if pools is None else pools, {**self._mine.done, **(done or {})}
        self._mine = msgspec.structs.replace(self._mine, pools=dict(pools), done=done)
        self._put()

    def order(self, component: str, changes: Mapping[str, Change]) -> None:
        """Have nodes run so many processes, or have some of them change their role."""
        self._number = max(self._number + 1, int(time.time() * 1000))
        since = {one.node: one.since for one in (*self._others.values(), self._mine)}
        orders = {
            node: Order(
                number=self._number,
                since=since[node],
                replicas=change.replicas,
                leave=change.leave,
                switch=change.switch,
                role=change.role,
            )
            for node, change in changes.items()
            if node in since
        }
        self._ordered[component] = asyncio.get_running_loop().time()
        self._mine = msgspec.structs.replace(self._mine, orders={**self._mine.orders, component: orders})
        self._put()
        self._follow(self._mine)

    def pending(self, component: str) -> bool:
        """Whether a node has not done what it was ordered."""
        if asyncio.get_running_loop().time() - self._ordered.get(component, 0.0) > self._patience:
            return False
        done = {one.node: one.done.get(component, 0) for one in (*self._others.values(), self._mine)}
        orders = self._mine.orders.get(component, {})
        return any(done.get(node, order.number) < order.number for node, order in orders.items())

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
        if record is None:
            self._others.pop(key, None)
            return
        self._others[key] = record
        if not self.active:
            self._follow(record)

    def _follow(self, record: PlannerRecord) -> None:
        """Do what it orders for our node."""
        for component, orders in record.orders.items():
            order = orders.get(self._node)
            if order is None or order.since != self._mine.since or order.number <= self._begun.get(component, 0):
                continue
            self._begun[component] = order.number
            self._spawn(self._apply(component, order), f"scale {component}")
