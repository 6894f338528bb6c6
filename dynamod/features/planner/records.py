"""What planners of several nodes tell each other, and what the daemon keeps for the next planner of its node."""

import msgspec

from dynamod.message.pools import Pool

PLANNERS = "v1/planners/"
"""Keys of PlannerRecord: `v1/planners/{namespace}/{graph}/{lease in hex}`."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The number of processes of a component that a node has to run. `leave`: the processes that end first, by number.

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
    that replace the configured limits.
    """

    at: float = 0.0
    paused: bool = False
    resumed: float = 0.0
    least: int | None = None
    most: int | None = None


class PlannerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A planner, as others of its graph know it. `since`: seconds of the epoch.

    The oldest decides, and gives the others `orders`, by component and node. Each record has the `pools` of its
    node, and by component the number of the newest order that was `begun` and that is `done`. `held`: why it changes
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
