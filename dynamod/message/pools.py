"""What the daemon tells the processes of a graph about a component that is run in several processes."""

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
    """`free`: replicas for which the node has devices left; None: they need none."""

    replicas: tuple[Replica, ...]
    free: int | None = None

    @property
    def wanted(self) -> int:
        """Replicas that are there to stay."""
        return sum(one.state != "Draining" for one in self.replicas)
