"""What the pools of a planner have of processes, and orders for nodes."""

from collections.abc import Iterable, Mapping, Sequence

from dynamod.message.discovery import Instance, ModelCard

from .nodes import PlannerNodes
from .pool import PlannedPool, Side
from .reconcile import Action, Change, Pools


class PoolOrders:
    """Each pool has the processes of its component.

    A feature that extends the planner makes another one: of the pools, the nodes and `clock` (seconds of the epoch).
    """

    def __init__(self, nodes: PlannerNodes) -> None:
        self._nodes = nodes

    def pool_of(self, component: str, instance: Instance) -> str:
        """The pool of a worker of a component."""
        return component

    def states(self, pool: PlannedPool) -> Pools:
        """The processes of a pool, by node."""
        return self._nodes.pools(pool.component)

    def follow(self, pool: PlannedPool) -> None:
        """See whether something is under way that concerns a pool."""
        held = pool.reconciler
        before, held.in_progress = held.in_progress, any(map(self._nodes.pending, self._concerned(pool)))
        if before and not held.in_progress:
            held.settled()

    def _concerned(self, pool: PlannedPool) -> Iterable[str]:
        """Components whose orders concern a pool."""
        return (pool.component,)

    def order(self, pool: PlannedPool, action: Action) -> None:
        """Have the nodes do it."""
        self._order(pool, pool.component, action.changes)

    def _order(self, pool: PlannedPool, component: str, changes: Mapping[str, Change]) -> None:
        pool.reconciler.in_progress = True
        self._nodes.order(component, changes)

    def switch(self, sides: Sequence[Side], budget: int, cards: Mapping[int, ModelCard]) -> bool:
        """Have a worker go to another pool, if that is better than what the pools do on their own.

        `budget`: GPUs that the pools may have together. `cards`: of ready workers, by lease.
        """
        return False
