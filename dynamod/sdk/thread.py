"""The node of a Python process, in a thread of its own.

The process joins its node as any command does: as guest of the daemon that is there, or as holder when there is none.
A holder keeps the registry for all processes of the node, and a user's file may keep its own loop busy for seconds
(loading a model, an engine that computes), so the node does not live in that loop.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import importlib.util
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamod.actor import ActorUnreachable, System, Terminated
from dynamod.daemon.node import Node
from dynamod.daemon.paths import choose_socket, link_path
from dynamod.discovery.keys import QUARANTINED
from dynamod.message.errors import UserError

from .graph import GRAPH, PythonGraph, Served
from .logs import Tap

log = logging.getLogger("dynamod.python")

SEATED = 30.0
STOPPED = 25.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the process is on its node: the graph that it is shown as, its folder, the registry's socket."""

    graph: str
    process: str
    folder: Path
    link: Path


class NodeThread:
    """`ask(verb)` is run in the loop that made this; `ended(why)` is called there when the process is to end."""

    def __init__(
        self, script: str, ask: Callable[[str], Coroutine[Any, Any, Any]], ended: Callable[[str], object]
    ) -> None:
        self._script, self._ask, self._ended = script, ask, ended
        self._home = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._place: concurrent.futures.Future[Place] = concurrent.futures.Future()
        self._done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._graph: PythonGraph | None = None
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="dynamod node", daemon=True)

    async def start(self) -> Place:
        """Take the seat, or join who has it. Raises UserError."""
        self._thread.start()
        return await asyncio.wrap_future(self._place)

    def show(self, served: Sequence[Served]) -> None:
        """What `ps` shows from now on."""
        graph, loop = self._graph, self._loop
        if graph is not None and loop is not None:
            graph.served = tuple(served)
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(graph.changed)

    async def stop(self) -> None:
        """Leave the node. Waits for the end of the thread, with a bound."""
        self._leaving = True  # before the look at the graph, which looks at this once it is there
        loop, graph = self._loop, self._graph
        if loop is not None and graph is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(graph.over.set)
        try:
            async with asyncio.timeout(STOPPED):
                await asyncio.wrap_future(self._done)
        except TimeoutError:
            log.error("the node did not end within %g s; its thread is left to the end of the process", STOPPED)
            return
        self._thread.join(1.0)

    # In the thread.

    def _run(self) -> None:
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
        if importlib.util.find_spec("uvloop") is not None:
            factory = importlib.import_module("uvloop").new_event_loop
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._live())
        except BaseException as error:
            if not self._place.done():
                self._place.set_exception(error)
            else:
                log.exception("the node of this process ended")
                self._tell(self._ended, f"{type(error).__name__}: {error}")
        finally:
            self._done.set_result(None)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with System() as system:
            node = Node(system, choose_socket(), title=f"python {self._script}", must_hold=False)
            ref = system.start("node", lambda: node, restart="temporary", shutdown=20.0)
            try:
                await system.ready(ref, timeout=SEATED)
            except ActorUnreachable:
                error = getattr(system.reason_of(ref), "error", None)
                raise error if isinstance(error, UserError) else ActorUnreachable("the node cannot start") from error
            # a handler at the root would keep logging.basicConfig of the user's file from doing anything; see logs.py
            logging.getLogger().removeHandler(node.recent)
            name = await node.claim(GRAPH, exact=False)
            graph = self._graph = PythonGraph(name, node, self._script, self._asked, lambda: self._told("dynamo stop"))
            node.graphs[name] = graph
            node.watch(QUARANTINED, graph.quarantined)
            node.changed()
            tap = Tap(node.recent, graph.process, self._loop)
            tap.open()
            node.context.task(self._stopped(node), "stopped")
            system.watch(ref, self._lost)
            self._place.set_result(Place(name, graph.process, node.folder.path, link_path(node.socket)))
            if self._leaving:
                graph.over.set()
            try:
                await graph.over.wait()
            finally:
                graph.over.set()
                tap.close()
                await asyncio.sleep(0)  # what was logged last is written
                await system.root.stop_child("node")

    async def _stopped(self, node: Node) -> None:
        await node.stopped.wait()
        self._told("dynamo stop")

    def _lost(self, notice: Terminated) -> None:
        if self._graph is not None and not self._graph.over.is_set():
            self._told(f"the node ended ({notice.reason})")

    async def _asked(self, command: str) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(command), self._home))

    def _told(self, why: str) -> None:
        self._tell(self._ended, why)

    def _tell(self, function: Callable[[str], object], argument: str) -> None:
        try:
            self._home.call_soon_threadsafe(function, argument)
        except RuntimeError:
            pass  # that loop is closed: nobody is left to tell
