"""Where the processes of a simulated cluster live: its nodes, and the places on them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dynamod.actor import Ref
from dynamod.ingress.processor import ProcessorBackend

from .daemon import Daemon, Link
from .etcd import SimulatedRegistry
from .process import SimulatedProcessor, SimulatedWorker
from .shape import WORKERS
from .wire import Process

if TYPE_CHECKING:
    from .ondemand import SimulatedOnDemand
    from .planners import SimulatedPlanner

Kind = Literal["worker", "ingress", "planner"]


@dataclass(slots=True, eq=False)
class Place:
    """Where a worker, an ingress or a planner lives: its node, and what runs there now.

    `pooled`: a worker that the graph's runner of its node starts and ends, as planners or people say. `component`: of
    a worker. `prefill`: it computes prompts for others, now or when it has started.
    """

    name: str
    node: int
    kind: Kind = "worker"
    pooled: bool = False
    component: str = WORKERS
    process: Process | None = None
    registry: SimulatedRegistry | None = None
    link: Link | None = None
    worker: SimulatedWorker | None = None
    processor: SimulatedProcessor | None = None
    planner: "SimulatedPlanner | None" = None
    keeper: "SimulatedOnDemand | None" = None
    model: str = ""  # of a pooled worker; empty: the one of all others
    backend: ProcessorBackend | None = None
    prefill: bool = False
    wanted: bool = True
    draining: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """One machine."""

    number: int
    daemon: Process
    registry: SimulatedRegistry
    supervisor: Ref | None = None
    link: Daemon | None = None
    alive: bool = True
    frozen: bool = False
    ending: bool = False
    places: dict[str, Place] = field(default_factory=dict[str, Place])
