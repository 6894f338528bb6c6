"""The node: everything that the daemon of this machine runs and knows."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamod.actor import Actor, ActorError, Crashed, Reason, Spec, System, Terminated, handle
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.control import Ping
from dynamod.message.errors import UserError
from dynamod.observe.logstore import LogStore
from dynamod.runtime.liveness import Clocks, clocks_of
from dynamod.runtime.paths import link_path, logs_folder

from .changes import Changes
from .clients import Clients
from .copied import CopiedPackage
from .gpus import Gpus, devices
from .graphs import Graphs
from .link import LinkServer
from .logs import NodeLogs
from .membership import Membership
from .names import node_name
from .parts import Parts
from .place import Place, run_folder_error

log = logging.getLogger("dynamod.daemon")

PING = 5.0
"""Seconds within which each part of the daemon answers the watchdog."""
REPORT = 0.5
"""Seconds between two looks at the graphs of sessions."""


class Life:
    """Since when the daemon lives (`time.monotonic`), and how it ends.

    `code`: the exit code. `grace`: seconds that open answers get to finish at the end; replaces the graphs' own.
    """

    def __init__(self) -> None:
        self.born = time.monotonic()
        self.stopped = asyncio.Event()
        self.code = 0
        self.grace: float | None = None

    def stop(self, grace: float | None = None) -> None:
        """End this process in good order."""
        self.grace = grace
        self.stopped.set()

    def fail(self, why: str) -> None:
        """End this process with an error: a new daemon is better than half of one."""
        if not self.stopped.is_set():
            log.critical("the daemon cannot serve its node any more and ends: %s", why)
            self.code = 1
            self.stop()


class Node(Actor):
    """Graphs of this machine, sessions of commands, users' files, the registry and its leases.

    `ephemeral`: end with the last session, file and graph. `first`: the connection of the command that started us.
    `control` makes the actor of the control socket.
    """

    logs: NodeLogs
    link: LinkServer

    def __init__(
        self,
        system: System,
        path: Path,
        *,
        control: "Callable[[Node], Actor]",
        ephemeral: bool = False,
        first: socket.socket | None = None,
    ) -> None:
        self.system, self.name = system, node_name()
        self.life, self.place = Life(), Place(path)
        self.gpus = Gpus(devices())
        self.registry = MemoryRegistry(system.random)
        self.cluster, self.code = Membership(self.registry), CopiedPackage()
        self.graphs, self.clients = Graphs(self), Clients(self, first, ephemeral=ephemeral)
        self.changes = Changes()
        self.changes.waiters.append(self.clients.report)
        self.parts = Parts(self, control)

    async def started(self) -> None:
        """Take the lock of the node and begin to listen. Raises NodeHeld, UserError."""
        self.place.take()
        try:
            store = LogStore(logs_folder(self.place.folder.path))
        except OSError as error:
            raise run_folder_error(error) from None
        self.context.task(self.code.take(self.place.folder), "snapshot")
        self.logs = NodeLogs(store, self.clients.output)
        self.logs.begin()
        await self.cluster.find()
        await self.parts.begin()
        self.link = link = LinkServer(
            link_path(self.place.socket),
            self.registry,
            self.name,
            clocks=_clocks(),
            cluster=self.cluster.settings.variables,
            changed=self.changes.notify,
            greeted=self.clients.greeted,
            closing=self.life.stopped.is_set,
        )
        link.said = {name: said for name, part in self.parts.of_features.items() if (said := part.to_processes())}
        await self.parts.serve(Spec("link", lambda: link))
        await self.clients.begin(_clocks())
        await self.cluster.join(self.system, self.name, link.lease)
        await self.parts.begin_features()
        await self.parts.serve_control()
        self.system.watch(self.parts.services.context.ref, self.part_ended)
        self.context.task(self._report(), "report")

    async def stopping(self, reason: Reason) -> None:
        """End all graphs, then let go of the node."""
        for session in self.clients.sessions:
            session.end("the daemon of this machine was stopped")
        graphs = (graph.stop(self.life.grace) for graph in self.graphs.all())
        await asyncio.gather(self.parts.end_features(), *graphs, return_exceptions=True)
        await self.system.root.stop_child("cluster")
        await self.parts.end()
        if hasattr(self, "logs"):
            self.logs.close()
            await self.code.give_back()
        self.place.leave()

    @handle
    async def ping(self, message: Ping) -> str | ActorError:
        """Answer the watchdog, when the link, the control socket and the bridge to other nodes answer too."""
        try:
            for part in ("services/link", "services/control", *self.cluster.parts):
                await self.system.ref(f"/{part}").ask(message, timeout=PING)
        except ActorError as error:
            return error
        return "pong"

    def part_ended(self, notice: Terminated) -> None:
        """End the daemon when the node, its link or its control socket has failed for good."""
        if isinstance(notice.reason, Crashed):
            self.life.fail(str(notice.reason))

    async def _report(self) -> None:
        """Tell sessions what has changed without a notice: a supervisor that gives a process up sends none.

        Files that another program has removed are made again, so that processes can start and be found.
        """
        while True:
            await asyncio.sleep(REPORT)
            with contextlib.suppress(OSError, UserError):
                self.place.restore()
                await self.code.restore()
            lock = self.place.lock
            if not lock.held and (other := lock.holder()):
                self.life.fail(f"process {other} holds the node now")
            self.clients.report()

    def inspection(self) -> dict[str, Any]:
        """Graphs and sessions."""
        return {
            "socket": str(self.place.socket),
            "graphs": sorted(self.graphs.names()),
            "sessions": sorted(session.name for session in self.clients.sessions),
        }


def _clocks() -> Clocks:
    """How long processes that came on their own may be without a heartbeat: as the environment says, if it can."""
    try:
        return clocks_of(())
    except UserError as error:
        log.error("%s; processes may be without a heartbeat for %g s", error.line(), Clocks().heartbeat)
        return Clocks()
