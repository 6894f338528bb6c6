"""The processes of a component: what the daemon tells of them, and what planners of several nodes tell each other."""

import msgspec

from .discovery import ModelCard, Word


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the component, as `ps` shows it. `uptime`: seconds. `lease`: 0 until it has one.

    `role`: that it has, or is about to have; empty until it is known. `guest`: it is of another component, among those
    that have the same role. `pid`: 0 where nobody knows.
    """

    replica: int
    state: str
    uptime: float = 0.0
    restarts: int = 0
    last_error: str = ""
    lease: int = 0
    role: str = ""
    guest: bool = False
    pid: int = 0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one node. `free`: replicas for which it has devices and memory left; None: they need none.

    `gpus`: of each replica. `alone`: it has lost the other nodes of its cluster. `by_hand`: how often something else
    than the order of a planner changed the number of replicas, or roles; None: the source of these facts cannot tell.
    """

    replicas: tuple[Replica, ...]
    free: int | None = None
    alone: bool = False
    gpus: int = 0
    by_hand: int | None = None

    @property
    def wanted(self) -> int:
        """Replicas that are there to stay."""
        return sum(one.state != "Draining" for one in self.replicas)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A node is to run so many processes of a component. `leave`: those that go first, by number.

    `switch`: nothing else, but that these have `role` from then on. `since`: of the planner that is to do it; one that
    has started later does not.
    """

    number: int
    since: float
    replicas: int
    leave: tuple[int, ...] = ()
    switch: tuple[int, ...] = ()
    role: str = ""


class PoolControl(msgspec.Struct, frozen=True, kw_only=True):
    """What people have asked of the planners of a pool: the newest counts, whichever planner was told.

    `at`, `resumed`: when it was said, and when to resume was said last (seconds of the epoch). `least`, `most`: limits
    in place of the configured ones.
    """

    at: float = 0.0
    paused: bool = False
    resumed: float = 0.0
    least: int | None = None
    most: int | None = None


class PlannerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A planner, as others of its graph know it. `since`: seconds of the epoch.

    The oldest decides, and gives the others `orders`, by component and node. Each tells of the `pools` of its node and
    of the orders that it has `begun`, and of those that are `done`: their numbers, by component. `held`: why it changes
    nothing, by component, because processes were started or ended by hand. `control`: by component.
    """

    node: str
    since: float
    pools: dict[str, Pool] = {}
    orders: dict[str, dict[str, Order]] = {}
    begun: dict[str, int] = {}
    done: dict[str, int] = {}
    held: dict[str, str] = {}
    control: dict[str, PoolControl] = {}


class PlannerMemo(msgspec.Struct, frozen=True, kw_only=True):
    """What people have done to a pool, kept by the daemon for the planner that is started after this one."""

    control: PoolControl = PoolControl()
    manual: bool = False


class ParkedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for although it may have no workers: a planner starts them when somebody does.

    `place`: where they will serve it, dyn://... `startup`: seconds that they take, as far as is known. `problem`: why
    it starts none now.
    """

    card: ModelCard
    place: str
    startup: float
    problem: str = ""


class WantedModel(msgspec.Struct, frozen=True):
    """Requests for a model wait at an ingress process until a worker is there."""

    model: Word
