"""A graph written in YAML alone: the `graph:` key of a config file as a mapping.

graph:
  services:
    Frontend: my.components:Frontend      # name: class path
    Prefill: {class: my.workers:Worker, workers: 2, resources: {gpu: 1}}
  links: [Frontend -> Prefill]                       # or [[Frontend, Prefill]]
  root: Frontend                                     # default: the one service without a link to it
  namespace: dynamo                                  # default: that of the classes
"""

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any, cast

from dynamod.graph.build import Node, Resolve, Topology, topology
from dynamod.graph.config import process_settings
from dynamod.graph.document import Document
from dynamod.graph.options import PROCESS_CHECKS
from dynamod.graph.service import Service
from dynamod.message.errors import UserError
from dynamod.message.hints import kind, known_hint, names

GRAPH_KEYS = ("services", "links", "root", "namespace")
SERVICE_KEYS = ("class", *PROCESS_CHECKS, "component")


def planned(
    document: Document, service_at: Callable[[str], Service[Any]], resolve: Resolve
) -> tuple[Topology, str | None]:
    """Read the mapping under `graph:`; also returns its namespace. Raises UserError with file, line and path.

    Links made by the class files do not count, the YAML has its own.
    """
    raw = cast("dict[str, Any]", document.data["graph"])
    document.only(("graph",), raw, GRAPH_KEYS)
    services = raw.get("services")
    if not isinstance(services, dict) or not services:
        problem = "expected a mapping of names to class paths"
        raise document.error(("graph", "services"), problem, f"known keys of graph: {names(GRAPH_KEYS)}")
    entries = {name: _entry(document, name, entry) for name, entry in cast("dict[str, Any]", services).items()}
    links = _links(document, raw.get("links") or [], entries)
    namespace = raw.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise document.error(("graph", "namespace"), f"expected a string, got {kind(namespace)}")
    root, nodes = _root(document, raw.get("root"), entries, links), dict[str, Node]()
    for name, (target, settings) in entries.items():
        try:
            nodes[name] = Node(name, service_at(target), settings)
        except UserError as error:
            raise document.error(("graph", "services", name), str(error), error.hint) from error
    edges = [(nodes[a], nodes[b]) for a, b in links]
    return topology(nodes[root], list(nodes.values()), edges, resolve), namespace


def _entry(document: Document, name: str, entry: Any) -> tuple[str, dict[str, Any]]:
    path = ("graph", "services", name)
    settings = cast("dict[str, Any]", entry if isinstance(entry, dict) else {"class": entry})
    target = settings.get("class")
    if not isinstance(target, str) or not all(target.rpartition(":")[::2]):
        raise document.error(path, "needs a class path 'module:Class'", f"known keys: {names(SERVICE_KEYS)}")
    checked = process_settings(document, path, settings, ("class", "component"))
    component = settings.get("component", "")
    if not isinstance(component, str):
        raise document.error((*path, "component"), f"expected a string, got {kind(component)}")
    return target, {**checked, "component": component}


def _links(document: Document, raw: Any, known: Collection[str]) -> tuple[tuple[str, str], ...]:
    chains = raw if isinstance(raw, list) else [raw]
    found: dict[tuple[str, str], None] = {}
    for index, chain in enumerate(chains):
        path = ("graph", "links", str(index)) if isinstance(raw, list) else ("graph", "links")
        parts: list[Any] = [part.strip() for part in chain.split("->")] if isinstance(chain, str) else chain
        if not isinstance(parts, list) or len(parts) < 2:
            raise document.error(path, "expected [A, B] or 'A -> B -> C'")
        for part in parts:
            if part not in known:
                raise document.error(path, f"no service '{part}'", known_hint(str(part), known, "services"))
        found.update(dict.fromkeys(pairwise(parts)))
    return tuple(found)


def _root(document: Document, root: Any, known: Collection[str], links: tuple[tuple[str, str], ...]) -> str:
    if root is not None and root not in known:
        raise document.error(("graph", "root"), f"no service '{root}'", known_hint(str(root), known, "services"))
    free = [name for name in known if all(b != name for _, b in links)]
    if root is None and len(free) != 1:
        problem = f"which service is the root? {names(free or known)} could be"
        raise document.error(("graph",), problem, "add root: NAME")
    return free[0] if root is None else str(root)
