"""What the names mean that commands are given: `Worker`, `agg/Worker`, `Worker.0`."""

from dynamod.daemon.attached import AttachedGraph
from dynamod.daemon.graphs import Graphs
from dynamod.daemon.process import ProcessRecord
from dynamod.daemon.runner import GraphRunner
from dynamod.message.errors import UserError
from dynamod.message.rows import Row

from .arguments import ComponentArguments


class UnknownName(UserError):
    """No component, graph or actor of that name."""


class Names:
    """Finds graphs, components and processes of a node."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def rows_of(self, graph: GraphRunner, component: str) -> list[Row]:
        """The rows of a component's processes, except processes that end."""
        return [row for row in graph.rows() if row.state != "Draining" and means(row, component.split(".")[0])]

    def components(self) -> list[str]:
        """Names of all components."""
        return sorted({row.component for row in self._graphs.rows()})

    def processes(self) -> list[ProcessRecord]:
        """All live processes."""
        return [process for graph in self._graphs.all() for process in graph.processes()]

    def started(self, arguments: ComponentArguments) -> tuple[GraphRunner, str]:
        """As `found`, when the daemon has started the graph. Raises UserError."""
        graph, component = self.found(arguments)
        if isinstance(graph, AttachedGraph):
            raise graph.refusal()
        return graph, component

    def found(self, arguments: ComponentArguments) -> tuple[GraphRunner | AttachedGraph, str]:
        """The component's graph, and its name there. Raises UserError when no graph or several have it."""
        name = arguments.component
        if not name:
            raise UserError("no component named", known(self.components()))
        before, _, rest = name.rpartition("/")
        graph, component = arguments.graph or before, rest if before in self._graphs.names() else name
        found = [one for one in self._graphs.all() if one.has(component) and graph in ("", one.name)]
        if not found and (kept := self._graphs.failed.get(graph)) is not None:
            why = f"graph '{graph}' could not start: {kept.why}"
            raise UserError(why, "SIGHUP tries again, dynamo stop forgets it")
        if not found:
            raise UnknownName(f"no component '{name}'", known(self.components()))
        if len(found) > 1:
            choices = ", ".join(f"{one.name}/{component}" for one in found)
            raise UserError(f"several graphs have a component '{component}'", f"name one of: {choices}")
        return found[0], component


def means(row: Row, name: str) -> bool:
    """Whether a component or process group, with or without graph and number, means a row of `ps`."""
    graph, _, last = name.rpartition("/")
    numbered = f"{row.component}.{row.process.rpartition('.')[2]}"
    found = last in (row.component, numbered) and graph in ("", row.graph)
    return found or is_of(row.process, name)


def is_of(process: str, name: str) -> bool:
    """Whether a name like `Worker`, `Worker.0` or `agg/Worker` means `agg/Worker.0`; an empty name means all."""
    last = process.rpartition("/")[2]
    return not name or name in (process, process.rpartition(".")[0], last, last.partition(".")[0])


def known(names: list[str]) -> str:
    """The hint with the names that exist."""
    return f"known: {', '.join(names)}" if names else "nothing is running"
