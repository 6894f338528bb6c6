"""Which services of a graph share a process. Pure: a graph in, process groups out."""

from dataclasses import dataclass

from dynamod.graph.graph import FRONTEND, Graph, ServiceSpec
from dynamod.message.errors import UserError

from .sockets import hosts_of

INGRESS = "ingress"


def require_some(graph: Graph, node: str) -> None:
    """Raises UserError when all services of the graph are placed on other nodes."""
    placed = sorted({name for spec in graph.services.values() for name in spec.nodes})
    if placed and not groups(graph, node):
        raise UserError(
            f"no service of this graph is placed on node '{node}'",
            f"its ServiceArgs name {', '.join(placed)}; DYNAMOD_NODE sets the name of a node",
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Services that live together in each of `replicas` processes, in start order."""

    name: str
    services: tuple[ServiceSpec, ...]
    replicas: int
    gpus: int

    def listener(self) -> tuple[ServiceSpec, tuple[str, ...], int] | None:
        """The service that listens for clients, its hosts and port; None when none does. Raises UserError."""
        for spec in self.services:
            over_http = any("http" in info.transports for info in spec.endpoints.values())
            if over_http or spec.component_kind == FRONTEND:
                return spec, hosts_of(spec.config.get("host", "")), _port(spec)
        return None

    @property
    def python(self) -> str:
        """The interpreter of its processes; empty: that of the command. Only services placed `own` name one."""
        return self.services[0].python

    def place(self) -> tuple[tuple[str, ...], int] | None:
        """Hosts and port where it listens for clients."""
        listener = self.listener()
        return listener[1:] if listener is not None else None


def _port(spec: ServiceSpec) -> int:
    port = spec.config.get("port", 8000)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise UserError(f"{spec.name}.port is {port!r}", "give a number from 0 to 65535; 0 takes a free one")
    return port


def groups(graph: Graph, node: str = "") -> list[Group]:
    """Services placed `own` get processes of their own; the others share one ingress process.

    A service that listens for clients under another port than its neighbours is a group of its own too. Services that
    are placed on other nodes than `node` are left out; without a name none is.
    """
    own: list[Group] = []
    shared: list[ServiceSpec] = []
    for spec in graph.start_order():
        if not spec.enabled or (node and spec.nodes and node not in spec.nodes):
            continue
        if spec.placement == "own":
            own.append(Group(spec.name, (spec,), spec.workers, spec.gpus))
        else:
            shared.append(spec)
    if not shared:
        return own
    listeners = [spec for spec in shared if Group("", (spec,), 1, 0).listener() is not None]
    apart = listeners[:-1] if len(listeners) > 1 else []  # the root's listener stays with the ingress
    own.extend(Group(spec.name, (spec,), spec.workers, spec.gpus) for spec in apart)
    rest = tuple(spec for spec in shared if spec not in apart)
    name = rest[0].name if len(rest) == 1 else INGRESS
    replicas = max(spec.workers for spec in rest)
    return [*own, Group(name, rest, replicas, 0)]
