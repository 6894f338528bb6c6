"""The graphs of a node: running graphs, Python files that have joined, graphs that could not start again."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.message.errors import UserError
from dynamod.message.rows import Row

from .attached import AttachedGraph
from .groups import groups
from .names import check_name
from .port_owner import port_owner
from .reload import Kept
from .rows import down
from .runner import GraphRunner
from .sockets import Sockets, listen
from .spawn import Origin

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

IN_SERVICE = 30.0
MAKES_WAY = 10.0
"""Seconds that a new graph waits for the end of graphs that have its name, its ports or its GPUs."""


class Graphs:
    """`running`, `files`: by name. `failed`: handed over before this start, and could not start again.

    `trouble`: why the file of handed-over graphs cannot be used. `changed`: called when a graph has come or gone.
    `reload(timeout)`: reads the daemon's own file again; None: it has none. `grace`: seconds that open answers of
    graphs that are in no terminal get to finish when they are stopped.
    """

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.running: dict[str, GraphRunner] = {}
        self.files: dict[str, AttachedGraph] = {}
        self.failed: dict[str, Kept] = {}
        self.trouble = ""
        self.changed: Callable[[], None] = lambda: None
        self.reload: Callable[[float], Awaitable[None]] | None = None
        self.grace = IN_SERVICE

    def names(self) -> set[str]:
        """Names of all graphs and files of the node."""
        return {*self.running, *self.files}

    def all(self) -> list[GraphRunner | AttachedGraph]:
        """Graphs that run, then files."""
        return [*self.running.values(), *self.files.values()]

    def rows(self) -> list[Row]:
        """One row per component and replica, with what the node knows without the registry."""
        rows = [row for graph in self.all() for row in graph.rows()]
        for name, kept in self.failed.items():
            rows += [down(name, spec.name, kept.why) for spec in kept.graph.start_order()]
        return rows

    async def start(
        self,
        name: str,
        graph: Graph,
        *,
        origin: Origin | None = None,
        session: str = "",
        kept: bool = False,
        grace: float | None = None,
    ) -> GraphRunner:
        """Start a graph. Raises UserError when the name cannot be or is taken, or it cannot start.

        `origin`: None: the daemon's own environment, as it is now.
        """
        check_name(name)
        await self.make_way(graph, name)
        if name in self.names():
            owner = (self.running.get(name) or self.files[name]).session
            raise UserError(
                f"a graph '{name}' runs already{f' ({owner})' if owner else ''}",
                f"stop it first: dynamo stop {name}, or use --name",
            )
        origin = origin if origin is not None else Origin()
        runner = GraphRunner(self._node, name, graph, origin=origin, session=session, kept=kept, grace=grace)
        self.running[name] = runner
        try:
            await runner.start()
        except BaseException:
            del self.running[name]
            raise
        if kept:
            self.failed.pop(name, None)
        log.info("graph %s started (%s)", name, graph.target or graph.root, extra={"graph": name})
        self.changed()
        return runner

    async def make_way(self, graph: Graph, name: str = "") -> None:
        """Wait for the graphs that are about to end and have this name, or ports or GPUs of `graph`. Raises UserError.

        A command that is started again comes while the graph of the one before is still ending.
        """
        wanted = groups(graph, self._node.name)
        ports = {place[1] for group in wanted if (place := group.place()) is not None} - {0}
        short = sum(group.gpus * group.replicas for group in wanted) > self._node.gpus.free()
        in_the_way = [
            one
            for one in self.running.values()
            if one.ending and (one.name == name or not ports.isdisjoint(_ports(one)) or (short and _has_gpus(one)))
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAKES_WAY):
                for one in in_the_way:
                    await one.ended.wait()

    async def stop(self, name: str, grace: float | None = None) -> None:
        """End a graph for good. `grace`: seconds that open answers get to finish; None: the graph's own setting."""
        graph = self.running.get(name) or self.files[name]
        await graph.stop(grace)
        if self.running.get(name) is graph:
            del self.running[name]
            self.changed()
        self._node.changes.notify()
        self._node.clients.end_if_unused()

    def forget(self, name: str) -> None:
        """Try no more to start a graph that was handed over and could not start again."""
        del self.failed[name]
        self.changed()
        self._node.changes.notify()

    def listen(self, service: ServiceSpec, hosts: Sequence[str], port: int) -> Sockets:
        """Listening sockets for a service. Raises UserError, which names the owner of a port that is in use."""
        return listen(hosts, port, service.name, self._port_owner)

    def _port_owner(self, port: int) -> str:
        for name, graph in self.running.items():
            if port in _ports(graph):
                return f"graph '{name}' of this daemon"
        return port_owner(port)


def _ports(graph: GraphRunner) -> set[int]:
    """Where clients reach a graph."""
    return {running.sockets[0].getsockname()[1] for running in graph.groups.values() if running.sockets}


def _has_gpus(graph: GraphRunner) -> bool:
    return any(any(running.replicas.values()) for running in graph.groups.values())
