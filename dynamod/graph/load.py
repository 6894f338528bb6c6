"""Loading a graph: find the file and the config, import, prune, apply the config, describe.

`load_graph` gives data and leaves no trace of the user's modules in this process. `load_service(spec)` is what a
child process calls to get the class it hosts. `build_graph` describes services already at hand.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from dynamod.graph.build import Node, Topology, topology
from dynamod.graph.config import read_config
from dynamod.graph.depends import Dependency
from dynamod.graph.describe import describe
from dynamod.graph.document import Document
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.graph.importing import Importer, find_module, import_module, shipped_root
from dynamod.graph.link import PROCESS_LINKS, LinkedServices, collecting
from dynamod.graph.places import find_config, module_file, no_module, split_target
from dynamod.graph.service import Service
from dynamod.graph.yamlgraph import Plan, plan
from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint, names


def load_graph(
    target: str | None,
    config_file: str | None = None,
    *,
    working_dir: Path | None = None,
    overrides: Sequence[str] = (),
    service_name: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Graph:
    """Load `module.path:Class` or `path/to/file.py:Class`, or what `graph:` in the config says.

    `working_dir`: where files are looked for first (default: the current folder), before those shipped. `overrides`:
    arguments `--Service.key=value`. `service_name`: only this service, standalone. Runs the graph file. Raises
    UserError, always one line that names the place.
    """
    folder = Path(working_dir or Path.cwd()).resolve()
    if not folder.is_dir():
        raise UserError(f"working directory {folder} does not exist")
    file = find_config(config_file, folder) if config_file else None
    text = file.read_text(encoding="utf-8") if file else ""
    document = read_config(text, _shown(file, folder) if file else "", overrides, environ)
    places = [folder, *([file.parent] if file else []), shipped_root()]
    asked: object = target or document.data.get("graph")
    if asked is None:
        raise no_module("", folder)
    with Importer(places) as importer, collecting() as links:
        loader = _Loader(importer, links)
        if isinstance(asked, str):
            shape, namespace = loader.linked(asked), None
        elif isinstance(asked, dict):
            described = plan(document)
            shape, namespace = loader.planned(described, document), described.namespace
        else:
            raise document.error(("graph",), "expected 'module:Class' or a mapping with services")
        shown = asked if isinstance(asked, str) else document.source
        graph = describe(shape, document, namespace, importer.sys_path(), shown)
    if service_name is None:
        return graph
    if service_name not in graph.services:
        hint = known_hint(service_name, graph.services, "services")
        raise UserError(f"no service '{service_name}' in {shown}", hint)
    return graph.only(service_name)


def build_graph(root: Service[Any], links: LinkedServices | None = None, document: Document | None = None) -> Graph:
    """The graph of services at hand, with the links made in this process (or in `links`)."""
    edges = _nodes(root, (links or PROCESS_LINKS).edges)
    shape = topology(edges[0], [], edges[1], _resolver(links or PROCESS_LINKS, None))
    return describe(shape, document or Document(), None, (), root.name)


def load_service(spec: ServiceSpec) -> Service[Any]:
    """The service of a spec, in the process that hosts it. Puts `spec.sys_path` in front of `sys.path` for good."""
    name, _, qualname = spec.path.partition(":")
    return _service_in(import_module(name, spec.sys_path, spec.file), qualname)


class _Loader:
    """One load: the importer and the book of links that the imported files fill."""

    def __init__(self, importer: Importer, links: LinkedServices) -> None:
        self.importer, self.links = importer, links

    def linked(self, target: str) -> Topology:
        """A graph of decorated classes."""
        service = self.service(target, afresh=True)
        module = self.module
        root, edges = _nodes(service, self.links.edges)
        shape = topology(root, [], edges, _resolver(self.links, self.service))
        # what the graph file imports but does not link (a planner, say) may have a section too
        imported = [other.name for other in vars(module).values() if isinstance(other, Service)]
        return replace(shape, known=tuple(dict.fromkeys([*shape.known, *imported])))

    def planned(self, described: Plan, document: Document) -> Topology:
        """A graph written in YAML; links made by the class files do not count, the YAML has its own."""
        nodes: dict[str, Node] = {}
        for name, target in described.targets.items():
            try:
                nodes[name] = Node(name, self.service(target), described.settings[name])
            except UserError as error:
                raise document.error(("graph", "services", name), str(error), error.hint) from error
        edges = [(nodes[a], nodes[b]) for a, b in described.links]
        return topology(nodes[described.root], list(nodes.values()), edges, _resolver(self.links, self.service))

    def service(self, target: str, afresh: bool = False) -> Service[Any]:
        """The service behind `module:Class`. `afresh`: its file's links are wanted."""
        name, qualname = split_target(target)
        self.module = self._module(name, afresh)
        return _service_in(self.module, qualname)

    def _module(self, name: str, afresh: bool) -> ModuleType:
        folder = self.importer.places[0]
        if file := module_file(name, self.importer.places):
            return self.importer.module_at(file)
        for place in self.importer.places:
            if find_module(place, name):
                if name.partition(".")[0] == "dynamod":  # the checkout is a place too, but we are never imported twice
                    break
                return self.importer.module(name, place)
        module = self.importer.installed(name, afresh=afresh and name.partition(".")[0] != "dynamod")
        if module is None:
            raise no_module(name, folder)
        return module


def _service_in(module: ModuleType, qualname: str) -> Service[Any]:
    found: Any = module
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType) else getattr(found, part, None)
    if isinstance(found, Service):
        return found
    there = [name for name, value in vars(module).items() if isinstance(value, Service)]
    file = getattr(module, "__file__", None) or module.__name__
    if found is None:
        raise UserError(f"{file} has no service '{qualname}'", known_hint(qualname, there, "services"))
    hint = f"decorate the class with @service; services: {names(there)}"
    raise UserError(f"'{qualname}' in {file} is no service but a {type(found).__name__}", hint)


def _nodes(
    root: Service[Any], edges: Sequence[tuple[Service[Any], Service[Any]]]
) -> tuple[Node, list[tuple[Node, Node]]]:
    nodes = {service: Node(service.name, service) for edge in [(root, root), *edges] for service in edge}
    return nodes[root], [(nodes[a], nodes[b]) for a, b in edges]


def _resolver(
    links: LinkedServices, by_path: Callable[[str], Service[Any]] | None
) -> Callable[[Dependency], "Service[Any] | type | None"]:
    """Turns a dependency given by name into a service: `module:Class`, a linked one, or one of its own module."""

    def resolve(dependency: Dependency) -> "Service[Any] | type | None":
        wanted = dependency.on
        if not isinstance(wanted, str):
            return wanted
        if ":" in wanted:
            if by_path is None:
                module, _, name = wanted.partition(":")
                return _service_in(import_module(module, ()), name)
            return by_path(wanted)
        for service in (service for edge in links.edges for service in edge):
            if service.name == wanted:
                return service
        home = sys.modules.get(dependency.owner.__module__) if dependency.owner else None
        found = getattr(home, wanted, None)
        return found if isinstance(found, Service) else None

    return resolve


def _shown(file: Path, folder: Path) -> str:
    """A path as short as it is clear."""
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
