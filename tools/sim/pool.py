"""A node's part of the pools of a graph: the real graph runner over the simulated supervisor, and the real answers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from dynamod.actor import ActorUnreachable, Spec
from dynamod.daemon.changes import Changes
from dynamod.daemon.gpus import Gpus
from dynamod.daemon.graphs import Graphs
from dynamod.daemon.groups import Group
from dynamod.daemon.process import ProcessRecord
from dynamod.daemon.processes import Processes
from dynamod.daemon.runner import GraphRunner
from dynamod.daemon.running import BACKOFF, Running
from dynamod.daemon.scaling import answer, pool_of
from dynamod.message.discovery import PREFILL
from dynamod.message.errors import DynamodError
from dynamod.message.pools import Pool

from .cluster import Cluster
from .places import Node, Place
from .shape import PREFILL_WORKERS
from .wire import Process

GRAPH = "graph"
SHUTDOWN = 5.0
"""Seconds for a worker to end that is not drained."""


class _Record(ProcessRecord):
    """What the daemon knows of a simulated process."""

    def __init__(self, place: Place, now: Callable[[], float]) -> None:
        assert place.process is not None
        assert place.link is not None
        super().__init__(place.process.name, place.process.pid, place.link.connection)
        self.process: Process = place.process
        self._now, self._begun = now, now()

    @property
    def age(self) -> float:
        """Virtual seconds since it was started."""
        return self._now() - self._begun


class _Running(Running):
    """Replicas are workers at places of the simulated cluster."""

    def name(self, index: int) -> str:
        """Unique in the whole cluster."""
        return f"{self.runner.node.name}.{self.group.name}{index}"

    def spec(self, index: int, child: str) -> Spec:
        """How to start a replica."""
        component = self.group.name
        first = PREFILL if component == PREFILL_WORKERS else ""

        def prefill() -> bool:
            return self.roles.get(index, {}).get(component, first) == PREFILL

        return cast("_Runner", self.runner).spec(child, component, prefill)

    def give_back(self, index: int) -> None:
        """Nobody wants it back."""
        cast("_Runner", self.runner).gone(self.child(index))
        super().give_back(index)


class _Processes(Processes):
    def record(self, child: str) -> ProcessRecord | None:
        """The record of a process that lives."""
        record = super().record(child)
        return record if isinstance(record, _Record) and record.process.alive else None


class _Runner(GraphRunner):
    """The real runner, whose processes are simulated."""

    def __init__(self, machine: "Machine", gpus: Mapping[str, int]) -> None:
        services = {name: SimpleNamespace(name=name, gpus=each, component_kind="") for name, each in gpus.items()}
        super().__init__(
            cast("Any", machine), GRAPH, cast("Any", SimpleNamespace(services=services)), origin=cast("Any", None)
        )
        self._cluster, self._place, self._models = machine.simulated, machine.node.number, machine.models
        self.supervised = _Processes(cast("Any", machine), GRAPH)
        self.supervised.supervisor = machine.simulated.supervisor(machine.node)
        for name, each in gpus.items():
            group = Group(name, (cast("Any", services[name]),), 0, each)
            self.groups[name] = _Running(self, group, ())

    def spec(self, child: str, component: str, prefill: Callable[[], bool]) -> Spec:
        """How to start a worker at the place of that name, which is made when it is used first."""
        cluster, model = self._cluster, self._models.get(component, "")
        place = cluster.places.get(child) or cluster.settle(
            Place(child, self._place, pooled=True, component=component, model=model)
        )
        place.wanted = True

        def make() -> Any:
            place.prefill = prefill()
            worker = cluster.worker(place)
            self.supervised.records[child] = _Record(place, cluster.system.now)
            return worker

        return Spec(child, make, backoff=BACKOFF, shutdown=SHUTDOWN)

    def gone(self, child: str) -> None:
        """A replica is gone for good."""
        if (place := self._cluster.places.get(child)) is not None:
            place.wanted = False


class Machine:
    """A node's daemon, as its graph and the answers to its processes see it.

    `gpus`: how many a replica takes, by component. `devices`: that the node has. `connected()`: to other nodes.
    `models`: that workers serve, by component, where it is not the one of all.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: Node,
        gpus: Mapping[str, int],
        devices: int,
        connected: Callable[[], bool],
        *,
        models: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.simulated, self.node, self.models = cluster, node, models
        self.cluster = SimpleNamespace(facts=lambda: {"store": "simulated", "connected": connected()})
        self.name, self.link = f"n{node.number}", node.link
        self.gpus = Gpus([str(number) for number in range(devices)])
        self.graphs, self.changes = Graphs(cast("Any", self)), Changes()
        self.runner = self.graphs.running[GRAPH] = _Runner(self, gpus)

    async def answer(self, command: str, arguments: dict[str, Any]) -> Any:
        """What processes of the graph ask. Raises DynamodError."""
        try:
            return await answer(cast("Any", self), GRAPH, command, arguments)
        except ActorUnreachable as error:
            raise DynamodError(f"the daemon is ending: {error}") from None

    def pool(self, component: str) -> Pool:
        """As the daemon tells it."""
        return pool_of(self.runner, component)
