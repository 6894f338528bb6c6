"""The processes of a component, as the daemon tells of them; models whose components may have no processes."""

import msgspec

from .discovery import ModelCard, Word


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the component, as `ps` shows it. `uptime`: seconds. `lease`: 0 until it has one.

    `role`: that it has, or is about to have; empty until it is known. `guest`: it is of another component, among those
    that have the same role. `pid`: 0 where it is unknown.
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


class ParkedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for although it may have no workers: a planner starts them at the first request.

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
