"""The processes of a component: what the daemon tells of them, and what planners of several nodes tell each other."""

import msgspec


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the component, as `ps` shows it. `uptime`: seconds. `lease`: 0 until it has one."""

    replica: int
    state: str
    uptime: float = 0.0
    restarts: int = 0
    last_error: str = ""
    lease: int = 0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one node. `free`: replicas for which it has devices left; None: they need none.

    `alone`: it has lost the other nodes of its cluster.
    """

    replicas: tuple[Replica, ...]
    free: int | None = None
    alone: bool = False

    @property
    def wanted(self) -> int:
        """Replicas that are there to stay."""
        return sum(one.state != "Draining" for one in self.replicas)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A node is to run so many processes of a component. `leave`: those that go first, by number.

    `since`: of the planner that is to do it; one that has started later does not.
    """

    number: int
    since: float
    replicas: int
    leave: tuple[int, ...] = ()


class PlannerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A planner, as others of its graph know it. `since`: seconds of the epoch.

    The oldest decides, and gives the others `orders`, by component and node. Each tells of the `pools` of its node and
    of the orders that it has `begun`, and of those that are `done`: their numbers, by component. `held`: why it changes
    nothing, by component, if somebody wants it so.
    """

    node: str
    since: float
    pools: dict[str, Pool] = {}
    orders: dict[str, dict[str, Order]] = {}
    begun: dict[str, int] = {}
    done: dict[str, int] = {}
    held: dict[str, str] = {}
