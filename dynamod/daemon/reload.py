"""A graph follows its file: what has changed restarts, the rest continues.

Only graphs that a file names are touched, never graphs that were handed over. Of one that has changed, the process
groups that differ are restarted (`GraphRunner.change`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamod.graph.diff import Changes, diff
from dynamod.graph.graph import Graph
from dynamod.message.control import FINISH
from dynamod.message.errors import UserError
from dynamod.observe.memory import replacing

from .names import graph_name
from .runner import GraphRunner

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A graph to start. `kept`: it was handed over before the last start of the service."""

    graph: Graph
    name: str = ""
    kept: bool = False

    @property
    def called(self) -> str:
        """The name it runs under."""
        return self.name or graph_name(self.graph)


@dataclass(frozen=True, slots=True)
class Kept:
    """A graph that was handed over before this start and could not start again; `why` in one line."""

    graph: Graph
    why: str


def reloader(read: Callable[[], Sequence[Wanted]]) -> "Callable[[Node, float], Any]":
    """What a service does on SIGHUP. `read` gives the graphs that the file names, each under a name of its own, or
    raises UserError.
    """

    async def reload(node: "Node", finish: float) -> None:
        own = {name: runner for name, runner in node.graphs.running.items() if not runner.kept and not runner.session}
        with replacing(process.pid for runner in own.values() for process in runner.processes()):
            wanted = await asyncio.to_thread(read)  # it imports the user's files: the loop must not wait
        await follow(node, own, {one.called: one.graph for one in wanted}, finish)
        for name, kept in list(node.graphs.failed.items()):
            if why := await _try(node.graphs.start(name, kept.graph, kept=True), name, logging.ERROR):
                node.graphs.failed[name] = Kept(kept.graph, why)

    return reload


async def follow(
    node: "Node", running: Mapping[str, GraphRunner], wanted: Mapping[str, Graph], finish: float = FINISH
) -> None:
    """Stop what is no longer named, change what differs, then start what is missing.

    `finish`: seconds that streams of processes which are replaced get to finish.
    """
    changed: list[str] = []
    for name, runner in running.items():
        if name not in wanted:
            log.info("reload: graph %s is no longer named: stopping it", name, extra={"graph": name})
            await node.graphs.stop(name)
        elif not (changes := diff(runner.graph, wanted[name])).nothing or runner.drained(wanted[name]):
            log.info("reload: graph %s changes (%s)", name, describe(changes), extra={"graph": name})
            changed.append(name)
        else:
            log.info("reload: graph %s is unchanged", name, extra={"graph": name})
    again = [name for name in changed if await _try(running[name].change(wanted[name], finish), name, logging.DEBUG)]
    for name in again:  # another graph may have left the port that it asks for
        if await _try(running[name].change(wanted[name], finish), name, logging.ERROR):
            log.warning("reload: graph %s runs on as it was", name, extra={"graph": name})
    for name, graph in wanted.items():
        if name not in running:
            await _try(node.graphs.start(name, graph), name, logging.ERROR)


def describe(changes: Changes) -> str:
    """`Worker: config, workers; added Planner`."""
    parts = [f"{name}: {', '.join(what)}" for name, what in (changes.changed or {}).items()]
    for word, names in (("added", changes.added), ("removed", changes.removed)):
        if names:
            parts.append(f"{word} {', '.join(names)}")
    return "; ".join(parts)


async def _try(work: Awaitable[Any], name: str, level: int) -> str:
    """Why it failed; empty when it did not."""
    try:
        await work
    except UserError as error:
        log.log(level, "reload: graph %s: %s", name, error.line())
        return error.line()
    except Exception as error:
        log.exception("reload: graph %s", name)
        return f"{type(error).__name__}: {error}"
    return ""
