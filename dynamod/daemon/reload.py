"""SIGHUP: the daemon's file is read again, and what runs follows it.

Only graphs that the file names are touched, never those that were handed over. One that has changed is stopped and
started as a whole.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamod.graph.diff import Changes, diff
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError

from .verbs import graph_name

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

HANDED_OVER = "handed over"
"""Origin of a graph that came by `dynamo serve --detach`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A graph to start. `origin`: how it was asked for, so that a service can start it again."""

    graph: Graph
    name: str = ""
    origin: Any = None

    @property
    def called(self) -> str:
        """The name it runs under."""
        return self.name or graph_name(self.graph)


def reloader(read: Callable[[], Sequence[Wanted]]) -> "Callable[[Node], Any]":
    """What boot calls on SIGHUP. `read` gives the graphs that the file names, each under a name of its own, or
    raises UserError.
    """

    async def reload(node: "Node") -> None:
        try:
            wanted = await asyncio.to_thread(read)  # it imports the user's files: the loop must not wait
        except UserError as error:
            log.error("nothing reloaded: %s", error.line())
            return
        await follow(node, {one.called: one.graph for one in wanted})

    return reload


async def follow(node: "Node", wanted: Mapping[str, Graph]) -> None:
    """Stop what is no longer named or has changed, then start what is missing."""
    running = {name: runner.graph for name, runner in node.graphs.items() if runner.origin != HANDED_OVER}
    before: dict[str, Graph] = {}
    for name, graph in running.items():
        if name not in wanted:
            log.info("reload: graph %s is no longer named: stopping it", name)
        elif not (changes := diff(graph, wanted[name])).nothing:
            log.info("reload: graph %s changed (%s): stopping and starting it", name, describe(changes))
            before[name] = graph
        else:
            log.debug("reload: graph %s is unchanged", name)
            continue
        await node.stop_graph(name)
    for name, graph in wanted.items():
        if name in running and name not in before:
            continue
        if not await _start(node, name, graph) and name in before and await _start(node, name, before[name]):
            log.warning("reload: graph %s runs again as it was", name)
    for name, graph in list(node.failed.items()):
        await _start(node, name, graph, HANDED_OVER)


def describe(changes: Changes) -> str:
    """`Worker: config, workers; added Planner`."""
    parts = [f"{name}: {', '.join(what)}" for name, what in (changes.changed or {}).items()]
    for word, names in (("added", changes.added), ("removed", changes.removed)):
        if names:
            parts.append(f"{word} {', '.join(names)}")
    return "; ".join(parts)


async def _start(node: "Node", name: str, graph: Graph, origin: Any = None) -> bool:
    try:
        await node.start_graph(name, graph, origin=origin)
    except UserError as error:
        log.error("reload: graph %s cannot start: %s", name, error.line())
        return False
    except Exception:
        log.exception("reload: graph %s cannot start", name)
        return False
    return True
