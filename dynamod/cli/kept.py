"""The graphs that were handed over to a service, in `graphs.json`: written at each change, read at its start.

The file is an object with the protocol number of the release that wrote it. Releases before 0.2.0 wrote the list alone;
their entries are migrated. A file of a newer release stays as it is, and the service says so until it is moved away.
"""

import contextlib
import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod.daemon.reload import Wanted
from dynamod.graph.graph import FRONTEND, PROCESSOR, WORKER, Graph
from dynamod.message.protocol import PROTOCOL

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

log = logging.getLogger("dynamod.daemon")

FORMER_ACTORS = {"FrontendComponent": FRONTEND, "ProcessorComponent": PROCESSOR, "WorkerComponent": WORKER}
"""What entries of the first release call the actors of components that ship, after their module of dynamod."""
FORMER_KEYS = ("actor", "service_args", "image", "lease_ttl")
"""Keys of services that this release derives from others, or does not have."""


class NewerRelease(Exception):
    """The file was written by a release with a higher protocol number."""


class KeptGraphs:
    """The file of a service; `file` None: nothing is kept. `trouble`: why it cannot be used; empty when it can."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._writes = True
        self.trouble = ""

    def read(self) -> list[Wanted]:
        """The graphs that are to come back."""
        file = self._file
        if file is None or not file.is_file():
            return []
        try:
            entries = _entries(json.loads(file.read_text(encoding="utf-8")))
            return [Wanted(Graph.from_dict(entry["graph"]), entry["name"], kept=True) for entry in entries]
        except NewerRelease as error:
            self._writes = False  # a newer release can still read it
            self.trouble = f"{file}: {error}; its graphs do not start, and no changes are kept"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            aside = file.with_suffix(".broken")  # the next change would write over it
            with contextlib.suppress(OSError):
                file.replace(aside)
            self.trouble = f"{file} cannot be read and is now {aside}: {error!r}; its graphs do not start"
        log.error("%s", self.trouble)
        return []

    def follow(self, node: "Node") -> None:
        """Write the file whenever the graphs of the node change, and have the node report what is wrong with it."""
        node.graphs.changed = partial(self._write, node)
        node.graphs.trouble = self.trouble
        if self._file is not None and self._file.is_file() and not self.trouble:
            self._write(node)  # in the form of this release

    def _write(self, node: "Node") -> None:
        """Write down the graphs that were handed over, so that they come back; also graphs that cannot start now."""
        file = self._file
        if file is None or not self._writes:
            return
        graphs = [
            {"name": runner.name, "graph": runner.graph.to_dict()}
            for runner in node.graphs.running.values()
            if runner.kept
        ]
        graphs += [{"name": name, "graph": kept.graph.to_dict()} for name, kept in node.graphs.failed.items()]
        text = json.dumps({"protocol": PROTOCOL, "graphs": graphs})
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_suffix(".new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)
        except OSError as error:
            log.error("cannot keep the list of graphs in %s: %s", file, error.strerror)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """`name` and `graph` of each. Raises NewerRelease, or what a broken file raises."""
    if isinstance(value, list):
        return [{**entry, "graph": migrated(entry["graph"])} for entry in value]
    if value["protocol"] > PROTOCOL:
        raise NewerRelease(f"it was written with protocol {value['protocol']}, and this release reads up to {PROTOCOL}")
    return list(value["graphs"])


def migrated(graph: Mapping[str, Any]) -> dict[str, Any]:
    """A graph as releases before 0.2.0 wrote it, in the form of this one."""
    return {**graph, "services": {name: _service(spec) for name, spec in graph["services"].items()}}


def _service(spec: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in spec.items() if key not in FORMER_KEYS}
    actor = spec.get("actor") or ""
    shipped = FORMER_ACTORS.get(actor.partition(":")[2]) if actor.startswith("dynamod.") else None
    found.setdefault("component_kind", shipped or actor)
    found["component_type"] = found.get("component_type") or ""
    return found
