"""Loading a graph: find the file and the config, import, prune, apply the config, describe.

`load_graph` gives data and leaves no trace of the user's modules in this process. `load_service(spec)` is what a
child process calls to get the class it hosts.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from dynamod.extension.feature import ConfigKey
from dynamod.extension.installed import config_keys
from dynamod.graph import importing
from dynamod.graph.build import Node, Topology, topology
from dynamod.graph.config import read_config
from dynamod.graph.depends import Dependency
from dynamod.graph.describe import describe
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.graph.importing import Importer
from dynamod.graph.service import Links, Service, collecting
from dynamod.graph.yamlgraph import planned
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
    keys: Mapping[str, ConfigKey] | None = None,
) -> Graph:
    """Load `module.path:Class` or `path/to/file.py:Class`, or what `graph:` in the config names.

    `working_dir`: where files are looked for first (default: the current folder), before those shipped. `overrides`:
    arguments `--Service.key=value`. `service_name`: only this service, standalone. `keys`: the keys at the top of the
    file that become components (default: those of the features). Runs the graph file. Raises UserError, always one
    line with the file or key.
    """
    folder = Path(working_dir or Path.cwd()).resolve()
    if not folder.is_dir():
        raise UserError(f"working directory {folder} does not exist")
    file = importing.find_config(config_file, folder) if config_file else None
    text = _text(file) if file else ""
    shown = file.relative_to(folder) if file and file.is_relative_to(folder) else file
    document = read_config(text, str(shown or ""), overrides, environ)
    folders = [folder, *([file.parent] if file else []), importing.shipped_root()]
    wanted: object = target or document.data.get("graph")
    for key, one in (config_keys() if keys is None else keys).items():
        if key in document.data and one.expand is not None:
            document, target = one.expand()(document, wanted)
            wanted = document.data["graph"]
    if wanted is None:
        raise importing.no_graph(folder, str(shown or ""), document.data)
    with Importer(folders) as importer, collecting() as links:
        loader = _Loader(importer, links)
        if isinstance(wanted, str):
            found, namespace = loader.linked(wanted), None
        elif isinstance(wanted, dict):
            found, namespace = planned(document, loader.service, loader.resolve)
        else:
            raise document.error(("graph",), "expected 'module:Class' or a mapping with services")
        source = target or (wanted if isinstance(wanted, str) else document.source)
        graph = describe(found, document, namespace, importer.sys_path(), source)
    if service_name is None:
        return graph
    if service_name not in graph.services:
        hint = known_hint(service_name, graph.services, "services")
        raise UserError(f"no service '{service_name}' in {source}", hint)
    return graph.only(service_name)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", "check its permissions") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error.reason})", "save it as UTF-8") from None


def load_service(spec: ServiceSpec) -> Service[Any]:
    """The service of a spec, in the process that hosts it. Puts `spec.sys_path` in front of `sys.path` for good."""
    name, _, qualname = spec.path.partition(":")
    return _service_in(importing.import_module(name, spec.sys_path, spec.file), qualname)


class _Loader:
    """One load: the importer, and the links that the imported files make."""

    def __init__(self, importer: Importer, links: Links) -> None:
        self._importer, self._links = importer, links

    def linked(self, target: str) -> Topology:
        """A graph of decorated classes."""
        name, qualname = importing.split_target(target)
        module = self._module(name, afresh=True)
        root = _service_in(module, qualname)
        nodes = {service: Node(service.name, service) for edge in [(root, root), *self._links] for service in edge}
        found = topology(nodes[root], [], [(nodes[a], nodes[b]) for a, b in self._links], self.resolve)
        # what the graph file imports but does not link (a planner, say) may have a section too
        imported = [other.name for other in vars(module).values() if isinstance(other, Service)]
        return replace(found, known=tuple(dict.fromkeys([*found.known, *imported])))

    def resolve(self, dependency: Dependency) -> "Service[Any] | type | None":
        """What a dependency given by name means: `module:Class`, a linked service, or one of its own module."""
        wanted = dependency.on
        if not isinstance(wanted, str):
            return wanted
        if ":" in wanted:
            return self.service(wanted)
        module = sys.modules.get(dependency.owner.__module__) if dependency.owner else None
        linked = (service for edge in self._links for service in edge if service.name == wanted)
        found = next(linked, getattr(module, wanted, None))
        return found if isinstance(found, Service) else None

    def service(self, target: str) -> Service[Any]:
        """The service at `module:Class` or `file.py:Class`."""
        name, qualname = importing.split_target(target)
        return _service_in(self._module(name, afresh=False), qualname)

    def _module(self, name: str, *, afresh: bool) -> ModuleType:
        """`afresh`: the links of its file are wanted."""
        if file := importing.module_file(name, self._importer.folders):
            return self._importer.module_at(file)
        module = self._importer.module(name, afresh=afresh)
        if module is None:
            raise importing.no_module(name, self._importer.folders[0])
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
