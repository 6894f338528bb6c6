"""Two pools of a planner, of prefill workers and of others, that share their workers."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dynamod.features.planner.nodes import PlannerNodes
from dynamod.features.planner.orders import PoolOrders
from dynamod.features.planner.pool import PlannedPool, Side
from dynamod.features.planner.reconcile import BACKOFF, Action, Change, Pools
from dynamod.message.discovery import Instance, ModelCard

from .decision import Switch, able, by_role, kind_of, orders, switch

log = logging.getLogger("dynamod.planner")


class _Ordered(NamedTuple):
    """The last switch: of a replica on a node, to a role."""

    component: str
    node: str
    replica: int
    role: str


class SharedPools(PoolOrders):
    """Each of the two pools has the processes of both components that have its role.

    `clock`: seconds of the epoch.
    """

    def __init__(
        self, pools: Collection[PlannedPool], nodes: PlannerNodes, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(nodes)
        self._clock = clock
        self._by_kind = {pool.kind: pool for pool in pools}
        self._touched: dict[str, set[str]] = {pool.component: set() for pool in pools}  # other components, by orders
        self._last: _Ordered | None = None
        self._no_switch = 0.0  # before that time

    def pool_of(self, component: str, instance: Instance) -> str:
        """The pool that has the role of a worker."""
        return self._by_kind[kind_of(instance.pool, "decode")].component

    def states(self, pool: PlannedPool) -> Pools:
        """The processes of a pool, by node."""
        other = self._other(pool)
        return by_role(pool.kind, super().states(pool), super().states(other), other.kind)

    def follow(self, pool: PlannedPool) -> None:
        """See whether something is under way that concerns a pool: of its component, or that of its guests."""
        super().follow(pool)
        if not pool.reconciler.in_progress:
            self._touched[pool.component].clear()

    def _concerned(self, pool: PlannedPool) -> Iterable[str]:
        guests = any(one.guest for state in self.states(pool).values() for one in state.replicas)
        return {pool.component, *self._touched[pool.component], *([self._other(pool).component] if guests else ())}

    def order(self, pool: PlannedPool, action: Action) -> None:
        """Have the nodes do it."""
        other = self._other(pool)
        changes = orders(action, self.states(pool), super().states(pool), super().states(other))
        for component, some in ((other.component, changes.other), (pool.component, changes.own)):
            if some:
                self._order(pool, component, some)

    def switch(self, sides: Sequence[Side], budget: int, cards: Mapping[int, ModelCard]) -> bool:
        """Have a worker change its role, if that is better than what the pools do on their own.

        `budget`: GPUs that they may have together. `cards`: of ready workers, by lease.
        """
        now, gpus = sides[0].tick.now, {pool.gpus for pool in self._by_kind.values()}
        if len(gpus) != 1 or any(pool.reconciler.in_progress for pool in self._by_kind.values()):
            return False  # a worker with other GPUs would not be one more there
        self._judge(now)
        found = switch(sides, budget // gpus.pop(), able(cards)) if now >= self._no_switch else None
        if found is not None:
            self._switch(found, several=len(sides[0].pools) > 1)
        return found is not None

    def _switch(self, found: Switch, *, several: bool) -> None:
        (node, worker, kind), to = found, self._by_kind[found.kind]
        leaves = self._other(to)
        home = to.component if worker.guest else leaves.component
        what = f"{home}.{worker.replica}{f' on {node}' if several else ''} becomes {kind}"
        log.info("%s, from pool %s to %s (switch)", what, leaves.component, to.component)
        self._last = _Ordered(home, node, worker.replica, kind)
        there = self._nodes.pools(home)[node].wanted
        for pool, change in ((to, 1), (leaves, -1)):
            pool.switched(self._clock(), node, what, change)
            self._touched[pool.component].add(home)
            pool.reconciler.in_progress = True
        self._nodes.order(home, {node: Change(replicas=there, switch=(worker.replica,), role=kind)})

    def _judge(self, now: float) -> None:
        """A worker that has not done what it was to do is not asked again at once."""
        if (last := self._last) is None:
            return
        self._last, pool = None, self._nodes.pools(last.component).get(last.node)
        if pool is not None and any(one.replica == last.replica and one.role != last.role for one in pool.replicas):
            self._no_switch = now + BACKOFF

    def _order(self, pool: PlannedPool, component: str, changes: Mapping[str, Change]) -> None:
        self._touched[pool.component].add(component)
        super()._order(pool, component, changes)

    def _other(self, pool: PlannedPool) -> PlannedPool:
        return next(one for one in self._by_kind.values() if one is not pool)


def pool_orders(
    pools: Collection[PlannedPool], nodes: PlannerNodes, *, clock: Callable[[], float] = time.time
) -> PoolOrders:
    """Orders of two pools that share their workers, where there are a pool of prefill workers and one other pool."""
    kinds = {pool.kind for pool in pools}
    return SharedPools(pools, nodes, clock=clock) if len(kinds) == len(pools) == 2 else PoolOrders(nodes)
