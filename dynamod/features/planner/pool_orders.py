"""What the pools of a planner have of processes, and order of nodes. Two pools may share their workers."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from dynamod.message.discovery import Instance

from .nodes import PlannerNodes
from .pool import PlannedPool
from .reconcile import BACKOFF, Action, Change, Pools
from .roles import Side, Switch, by_role, kind_of, orders, switch

log = logging.getLogger("dynamod.planner")


class _Ordered(NamedTuple):
    """The last switch: of a replica on a node, to a role."""

    component: str
    node: str
    replica: int
    role: str


class PoolOrders:
    """`switches`: whether a worker can be told to change its role. `clock`: seconds of the epoch.

    Then two pools, of prefill workers and of others, have the processes of both components that have their role.
    """

    def __init__(
        self,
        pools: Collection[PlannedPool],
        nodes: PlannerNodes,
        *,
        switches: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nodes, self._clock = nodes, clock
        by_kind = {pool.kind: pool for pool in pools}
        self._by_kind = by_kind if switches and len(by_kind) == len(pools) == 2 else {}
        self._touched: dict[str, set[str]] = {pool.component: set() for pool in pools}  # other components, by orders
        self._last: _Ordered | None = None
        self._no_switch = 0.0  # before that time

    def pool_of(self, component: str, instance: Instance) -> str:
        """The pool of a worker of a component: the component, or that which has the role."""
        return self._by_kind[kind_of(instance.pool, "decode")].component if self._by_kind else component

    def states(self, pool: PlannedPool) -> Pools:
        """The processes of a pool, by node."""
        own = self._nodes.pools(pool.component)
        if not self._by_kind:
            return own
        other = self._other(pool)
        return by_role(pool.kind, own, self._nodes.pools(other.component), other.kind)

    def follow(self, pool: PlannedPool) -> None:
        """See whether something is under way that concerns a pool: of its component, or that of its guests."""
        touched, held = self._touched[pool.component], pool.reconciler
        components, before = {pool.component, *touched}, held.in_progress
        if any(one.guest for state in self.states(pool).values() for one in state.replicas):
            components.add(self._other(pool).component)
        held.in_progress = any(self._nodes.pending(component) for component in components)
        if before and not held.in_progress:
            touched.clear()
            held.settled()

    def order(self, pool: PlannedPool, action: Action) -> None:
        """Have the nodes do it."""
        own, other = action.changes, dict[str, Change]()
        if self._by_kind:
            second = self._other(pool).component
            states = (self.states(pool), self._nodes.pools(pool.component), self._nodes.pools(second))
            own, other = orders(action, *states)
            if other:
                self._order(pool, second, other)
        if own:
            self._order(pool, pool.component, own)

    def switch(self, sides: Sequence[Side], budget: int, able: Collection[int]) -> bool:
        """Have a worker change its role, if that is better than what the pools do by themselves.

        `budget`: GPUs that they may have together. `able`: leases of workers that can.
        """
        now, gpus = sides[0].tick.now, {pool.gpus for pool in self._by_kind.values()}
        if len(gpus) != 1 or any(pool.reconciler.in_progress for pool in self._by_kind.values()):
            return False  # a worker with other GPUs would not be one more there
        self._judge(now)
        found = switch(sides, budget // gpus.pop(), able) if now >= self._no_switch else None
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

    def _order(self, pool: PlannedPool, component: str, changes: dict[str, Change]) -> None:
        pool.reconciler.in_progress = True
        self._touched[pool.component].add(component)
        self._nodes.order(component, changes)

    def _other(self, pool: PlannedPool) -> PlannedPool:
        return next(one for one in self._by_kind.values() if one is not pool)
