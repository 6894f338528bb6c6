"""The description of a graph: plain frozen data that travels to other processes as JSON.

Nothing here refers to a class or module object; `load.load_service(spec)` turns a spec into a service where it runs.
The dicts inside are not to be changed; two graphs may share them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from dynamod.extension.installed import declared

T = TypeVar("T")

FRONTEND, PROCESSOR, WORKER = "frontend", "processor", "worker"
"""Kinds of the components that ship; `runtime.components` knows the actor of each."""


@dataclass(frozen=True)
class EndpointInfo:
    """One endpoint. `streams`: many items, not one value. `http_method`: set when it is an HTTP route."""

    name: str
    function: str
    transports: tuple[str, ...] = ("default",)
    http_method: str | None = None
    streams: bool = True


@dataclass(frozen=True)
class DependsInfo:
    """Where a dependency leads. `service` is a name in the graph (or was, before `--service-name` cut it down)."""

    service: str
    namespace: str
    component: str
    endpoints: tuple[str, ...] = ()

    def address(self, endpoint: str) -> str:
        """`namespace.component.endpoint`, under which instances are found."""
        return f"{self.namespace}.{self.component}.{endpoint}"


@dataclass(frozen=True)
class ServiceSpec:
    """One service of a graph, all settings applied.

    `path`: `module:Class`; `file`: source file of that module; `sys_path`: entries to put in front of `sys.path` to
    import it; `code`: hash of the file, so that an edit shows in a diff. `config`: its YAML section with the common
    keys merged in, without `ServiceArgs`. `component_kind`: the actor that runs the service instead of its class
    (`@service(actor=...)`): a kind of `runtime.components`, or `module:Class`; empty for a class of the user.
    `component_type`: its role, as the decorator says: worker, prefill, ...
    `depends`: by attribute name, pruned. `nodes`: where it runs; empty: on each node that serves the graph.
    `python`: the interpreter of its process; empty: that of the command.
    """

    name: str
    path: str
    namespace: str
    component: str
    file: str = ""
    sys_path: tuple[str, ...] = ()
    code: str = ""
    enabled: bool = True
    endpoints: dict[str, EndpointInfo] = field(default_factory=dict[str, EndpointInfo])
    depends: dict[str, DependsInfo] = field(default_factory=dict[str, DependsInfo])
    workers: int = 1
    resources: dict[str, str | int] = field(default_factory=dict[str, str | int])
    envs: dict[str, str] = field(default_factory=dict[str, str])
    placement: str = "ingress"
    nodes: tuple[str, ...] = ()
    python: str = ""
    component_kind: str = ""
    component_type: str = ""
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def gpus(self) -> int:
        """GPUs per worker."""
        return int(self.resources.get("gpu", 0))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ServiceSpec":
        """Inverse of `to_dict`, also after a trip through JSON. Raises ValueError for anything else."""
        return _converted(data, cls)


@dataclass(frozen=True)
class Graph:
    """Services that work together in one namespace.

    `root`: the service named in the target. `services`: by name, in the order they are met from the root. `edges`:
    the links among them. `target` and `source`: what was to be loaded and the config file, for messages. `config`: the
    whole merged configuration, what children get as DYNAMO_SERVICE_CONFIG.
    """

    root: str
    services: dict[str, ServiceSpec]
    namespace: str
    edges: tuple[tuple[str, str], ...] = ()
    target: str = ""
    source: str = ""
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    def start_order(self) -> list[ServiceSpec]:
        """Services with those they depend on first, so the frontend starts last. Cycles start in any order."""
        order: dict[str, ServiceSpec] = {}
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen or name not in self.services:
                return
            seen.add(name)
            spec = self.services[name]
            for target in [info.service for info in spec.depends.values()] + [b for a, b in self.edges if a == name]:
                visit(target)
            order[name] = spec

        for name in self.services:
            visit(name)
        return list(order.values())

    def only(self, name: str) -> "Graph":
        """The graph reduced to one service. Its depends stay: they are found through discovery.

        The frontend brings the processor that it cannot do without.
        """
        kept = [name]
        if self.services[name].component_kind == FRONTEND:
            needed = [info.service for info in self.services[name].depends.values()]
            needed += [b for a, b in self.edges if a == name]
            kept += [one for one in needed if one in self.services and _is_ingress(self.services[one].component_kind)]
        edges = tuple((a, b) for a, b in self.edges if a in kept and b in kept)
        services = {one: self.services[one] for one in self.services if one in kept}
        return replace(self, root=name, services=services, edges=edges)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Graph":
        """Inverse of `to_dict`, also after a trip through JSON. Raises ValueError for anything else."""
        graph = _converted(data, cls)
        services = {name: ServiceSpec.from_dict(spec) for name, spec in data["services"].items()}
        return replace(graph, services=services)


def _is_ingress(kind: str) -> bool:
    """Whether components of the kind take the requests of clients."""
    added = declared(kind)
    return kind == PROCESSOR or (added is not None and added.ingress)


def _converted(data: Mapping[str, Any], kind: type[T]) -> T:
    found = msgspec.convert(data, kind)
    if unknown := data.keys() - vars(found).keys():  # of another version: it would mean something else here
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    return found
