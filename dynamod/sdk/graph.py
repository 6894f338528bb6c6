"""What a Python process is among the graphs of its node: a graph of its own, which only its file can start."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from dynamod.daemon.process import Process, ProcessFacts
from dynamod.daemon.runner import GraphRunner, Row
from dynamod.discovery.keys import quarantine_key
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

GRAPH = "python"
"""Graph of the first Python process of a node; the next are python-2, python-3, ..."""
STOP = 45.0
"""Seconds that `dynamo stop` waits for the process to end."""


@dataclass(frozen=True, slots=True)
class Served:
    """One component of the process. `since`: of `time.monotonic`."""

    component: str
    state: str
    since: float


class PythonGraph(GraphRunner):
    """Rows for `ps`, and `dynamo stop`. Lives in the node's thread; `served` is set from the file's.

    `ask(verb)`: what the process says of itself (`inspect`, `metrics`). `end()`: asks the file to shut down.
    """

    def __init__(
        self,
        name: str,
        node: "Node",
        script: str,
        ask: Callable[[str], Awaitable[Any]],
        end: Callable[[], object],
    ) -> None:
        super().__init__(
            name,
            Graph(script, {}, "", target=script),
            node.system,
            folder=node.folder.path,
            link=node.socket,
            gpus=node.gpus,
            output=lambda _process, _stream, _line: None,
            changed=node.changed,
            silent=node.silent,
        )
        self.process = f"{name}/{script}.0"
        self.served: tuple[Served, ...] = ()  # replaced as a whole: the other thread may look at any time
        self.over = asyncio.Event()
        self.unheard = ""  # why the process is left alone, empty when it is not
        self._quarantine = quarantine_key(node.name, os.getpid())
        self._itself = cast(Process, _Itself(self, ask))
        self._shut_down = end

    async def stop(self) -> None:
        """Ask the file to shut down, and wait for it with a bound."""
        if self.over.is_set():
            return
        self._shut_down()
        try:
            async with asyncio.timeout(STOP):
                await self.over.wait()
        except TimeoutError:
            raise UserError(f"{self.process} does not end", f"end process {os.getpid()} itself") from None

    async def drain(self, component: str, timeout: float = STOP) -> None:
        """As `stop`: what is open is finished."""
        await self.stop()

    async def restart(self, component: str, *, drain: bool = True, timeout: float = STOP) -> None:
        """Raises UserError: nobody here knows how the file was started."""
        raise self._not_ours()

    async def scale(self, component: str, replicas: int, timeout: float = STOP) -> None:
        """Raises UserError."""
        raise self._not_ours()

    async def change(self, graph: Graph, timeout: float = STOP) -> None:
        """Raises UserError."""
        raise self._not_ours()

    def _not_ours(self) -> UserError:
        return UserError(
            f"{self.name} is a Python process that the node did not start",
            f"dynamo stop {self.name}, and start its file as often as you want it",
        )

    def rows(self) -> list[Row]:
        """One row per component."""
        now, why = time.monotonic(), self.unheard
        return [
            Row(
                self.name,
                one.component,
                self.process,
                0,
                "Silent" if why else one.state,
                os.getpid(),
                0,
                now - one.since,
                why,
                [],
            )
            for one in self.served
        ]

    def quarantined(self, key: str, value: bytes | None) -> None:
        """News of who on the node is silent: this process holds the node, and its file keeps its loop busy."""
        if key == self._quarantine:
            self.unheard = "" if value is None else value.decode() or "silent"
            self._changed()

    def changed(self) -> None:
        """Tell the node that the rows are others."""
        self._changed()

    def has(self, component: str) -> bool:
        """Whether a component (or the process) of that name is here."""
        name = component.removeprefix(f"{self.name}/")
        known = {self.process.rpartition("/")[2], *self.components()}
        return name in known | {f"{one}.0" for one in self.components()}

    def components(self) -> list[str]:
        """Names of all components."""
        return [one.component for one in self.served]

    def processes(self, component: str) -> list[Process]:
        """The process itself: it can be asked as those can that the node starts."""
        return [self._itself] if not component or self.has(component) else []


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str


class _Itself:
    """Stands where the node has an actor for each process that it starts."""

    answers = False  # it routes no requests of front doors, so there is nothing to explain

    def __init__(self, graph: PythonGraph, ask: Callable[[str], Awaitable[Any]]) -> None:
        self.plan = _Plan(graph.process)
        self._graph, self._ask = graph, ask
        self._born = time.monotonic()

    async def ask(self, command: str, _arguments: dict[str, Any], *, timeout: float) -> Any:
        """See daemon.process.Process. Raises TimeoutError while the file keeps its loop busy."""
        async with asyncio.timeout(timeout):
            return await self._ask(command)

    def facts(self) -> ProcessFacts:
        """See daemon.process.Process."""
        states = {one.component: one.state for one in self._graph.served}
        return ProcessFacts(
            name=self.plan.name,
            pid=os.getpid(),
            components=states,
            detail="",
            beat_age=None,
            uptime=time.monotonic() - self._born,
            silent=self._graph.unheard,
        )
