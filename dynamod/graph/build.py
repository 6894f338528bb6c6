"""From services, links and depends to the topology of a graph: the services, and the clients that each service gets.

The pruning rule: once any link exists, a dependency whose target no link names is dropped. Without links
nothing is dropped and depends are followed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynamod.graph.depends import Dependency
from dynamod.graph.service import Service
from dynamod.message.errors import UserError

Resolve = Callable[[Dependency], "Service[Any] | type | None"]


@dataclass(eq=False)
class Node:
    """A service under its name in the graph. `settings`: those of a YAML graph, above the decorator's."""

    name: str
    service: Service[Any]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def serves(self, wanted: "Service[Any] | type") -> bool:
        """It is the wanted service, or a concrete subclass of the wanted abstract one."""
        if self.service is wanted:
            return True
        inner = wanted.inner if isinstance(wanted, Service) else wanted
        abstract = bool(getattr(inner, "__abstractmethods__", None))
        return abstract and not self.service.abstract and issubclass(self.service.inner, inner)


@dataclass
class Topology:
    """`nodes` in walking order from the root; `depends` by node name and attribute.

    `known`: names of all services that are linked, or that one of those depends on.
    """

    root: str
    nodes: dict[str, Node]
    depends: dict[str, dict[str, Node]]
    edges: tuple[tuple[str, str], ...]
    known: tuple[str, ...]


def topology(root: Node, listed: Sequence[Node], edges: Sequence[tuple[Node, Node]], resolve: Resolve) -> Topology:
    """Walk from `root` along links and kept depends; `listed` nodes (of a YAML graph) are in without being linked."""
    names: dict[str, Node] = {}
    for node in dict.fromkeys([root, *listed, *(node for edge in edges for node in edge)]):
        _enter(names, node)
    depends: dict[str, dict[str, Node]] = {}
    reached: dict[str, Node] = {}

    def target(node: Node, dependency: Dependency) -> Node | None:
        wanted = resolve(dependency)
        direct = [b for a, b in edges if a is node]
        for other in [*direct, *names.values()]:
            if wanted is not None and other.serves(wanted):
                return other
        if edges:
            return None
        if wanted is None:
            raise UserError(f"{node.name}.{dependency.name}: no service '{dependency.on}' can be found")
        if not isinstance(wanted, Service) or wanted.abstract:
            raise _abstract(wanted.__name__, [node.name])
        return _enter(names, Node(wanted.name, wanted))

    # depth first, so that a chain of links is listed as it is written; a stack, because chains may be long
    stack = [root, *listed][::-1]
    while stack:
        node = stack.pop()
        if node.name in reached:
            continue
        if node.service.abstract:
            raise _abstract(node.name, [a.name for a, b in edges if b is node])
        reached[node.name] = node
        targets = {name: target(node, wanted) for name, wanted in node.service.dependencies.items()}
        depends[node.name] = {name: other for name, other in targets.items() if other is not None}
        stack += [*(b for a, b in edges if a is node), *depends[node.name].values()][::-1]
    kept = tuple((a.name, b.name) for a, b in edges if a.name in reached and b.name in reached)
    return Topology(root.name, reached, depends, kept, _in_sight(names.values(), resolve))


def _enter(names: dict[str, Node], node: Node) -> Node:
    other = names.setdefault(node.name, node)
    if other.service is not node.service:
        both = f"{other.service!r} and {node.service!r}"
        raise UserError(f"two services of the graph are named {node.name}: {both}", "rename one class")
    return other


def _in_sight(nodes: Iterable[Node], resolve: Resolve) -> tuple[str, ...]:
    """Names that a config file may mention: one file serves several graphs of the same components."""
    services = {node.service.name: node.service for node in nodes}
    names = dict.fromkeys([node.name for node in nodes])
    todo = list(services.values())
    while todo:
        for dependency in todo.pop().dependencies.values():
            wanted = resolve(dependency)
            if isinstance(wanted, Service) and wanted.name not in services:
                services[wanted.name] = wanted
                names[wanted.name] = None
                todo.append(wanted)
    return tuple(names)


def _abstract(name: str, owners: Sequence[str]) -> UserError:
    owner = owners[0] if owners else "Other"
    hint = f"link a concrete implementation: {owner}.link(<a subclass of {name} with all its endpoints>)"
    return UserError(f"{name} is abstract and cannot be served", hint)
