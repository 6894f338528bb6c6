"""One graph that runs: its processes under a supervisor of their own, its sockets, its GPUs."""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dynamod.actor import ActorUnreachable
from dynamod.graph.graph import Graph
from dynamod.message.control import FINISH
from dynamod.message.discovery import DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.message.rows import Row
from dynamod.message.tls import TlsFiles

from .changing import GraphChange, plain
from .groups import groups, require_some
from .process import ProcessRecord
from .processes import Processes
from .rows import process_row
from .running import Running
from .sockets import close_all, url_of
from .spawn import Origin
from .stand_in import StandIn

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

IN_TERMINAL = 2.0
"""Seconds that open answers of a graph in a terminal get to finish when it is stopped."""
STARTS = 5.0
"""Seconds for which clients wait for an ingress process that is starting, in the listener's backlog."""


class GraphRunner:
    """Starts, watches and changes the processes of a graph.

    `session`: the command in whose terminal the graph runs; empty for one that runs until it is stopped. `kept`: it was
    handed over to a service, which starts it again after a restart. `grace`: seconds that open answers get to finish
    when it is stopped. `ending`: it is stopped, or is about to be; `ended`: its ports and GPUs are free.
    """

    def __init__(
        self,
        node: "Node",
        name: str,
        graph: Graph,
        *,
        origin: Origin,
        session: str = "",
        kept: bool = False,
        grace: float | None = None,
    ) -> None:
        self.node, self.name, self.graph = node, name, graph
        self.origin, self.session, self.kept = origin, session, kept
        self.grace = grace if grace is not None else IN_TERMINAL if session else node.graphs.grace
        self.memos: dict[str, object] = {}  # what processes leave to their successors, by component
        self.by_hand = Counter[str]()  # changes of the number of replicas, or of roles, without a planner's order
        self.groups: dict[str, Running] = {}
        self.supervised = Processes(node, name)
        self.ending, self.ended = False, asyncio.Event()
        self._stopping = asyncio.Lock()

    async def start(self) -> None:
        """Bind the ports, take the GPUs, start all processes. Raises UserError and leaves nothing running."""
        try:
            require_some(self.graph, self.node.name)
            for group in groups(self.graph, self.node.name):
                listener = group.listener()
                sockets = self.node.graphs.listen(*listener) if listener is not None else ()
                running = self.groups[group.name] = Running(self, group, sockets)
                running.clocks()  # wrong ones are an error before anything runs
                for index in range(group.replicas):
                    running.take(index)
            supervisor = await self.supervised.open()
        except BaseException:
            self._release()
            raise
        for running in self.groups.values():
            for index in list(running.replicas):
                self.supervised.spawn(running, index)
        supervisor.context.task(StandIn(self._ports, self.node.changes.waiters).run(), "stand-in")
        self.node.changes.notify()

    def _ports(self) -> Iterator[tuple[socket.socket, bool, TlsFiles | None]]:
        """The sockets for clients, whether a process serves each, soon will or need not, and the TLS files."""
        for running in self.groups.values():
            if running.sockets:
                names = running.names()
                records = [record for name in names if (record := self.supervised.record(name)) is not None]
                served = not names or any(record.ready or record.age < STARTS for record in records)
                yield from ((sock, served, running.tls) for sock in running.sockets)

    async def stop(self, grace: float | None = None) -> None:
        """End the processes that listen for clients, then all others, and give everything back.

        `grace`: seconds that open answers get to finish; None: the graph's own. A second caller waits for the first.
        """
        self.ending = True
        async with self._stopping:
            ingress = [name for running in self.groups.values() if running.sockets for name in running.names()]
            await self.supervised.close(ingress, grace)
            self._release()
            self.ended.set()
            self.node.changes.notify()

    def rows(self, *, leaving: bool = True) -> list[Row]:
        """One row per component and replica; with `leaving` also for processes about to take its place or to leave."""
        children, rows = self.supervised.children(), list[Row]()
        if self.supervised.supervisor is None:
            return []
        for running in self.groups.values():
            for index in sorted(running.replicas):
                current = running.child(index)
                others = [other for other, replica in running.others.items() if replica == index and leaving]
                for child in (current, *others):
                    for spec in running.group.services:
                        row = process_row(spec.name, running, index, children.get(child), self.supervised.record(child))
                        over = index in running.leaving and row.state in ("Ready", "Stopped")
                        if over or (child != current and row.state == "Ready"):
                            row = msgspec.structs.replace(row, state="Draining")  # it will hear of it at once
                        rows.append(row)
        return rows

    def urls(self) -> list[str]:
        """Where clients reach the graph."""
        return [
            url_of(running.sockets, "https" if running.tls else "http")
            for running in self.groups.values()
            if running.sockets
        ]

    def fatal(self) -> list[Row]:
        """Components that are given up."""
        return [row for row in self.rows(leaving=False) if row.state == "Fatal"]

    def ready(self) -> bool:
        """Whether all components are Ready."""
        rows = self.rows(leaving=False)
        return bool(rows) and all(row.state == "Ready" for row in rows)

    def processes(self) -> list[ProcessRecord]:
        """The records of live processes, one for each replica."""
        return [
            record
            for running in self.groups.values()
            for index in sorted(running.replicas)
            if (record := self.supervised.record(running.child(index))) is not None
        ]

    async def restart(self, component: str, *, drain: bool = True, timeout: float = FINISH) -> None:
        """Restart the processes of a component, one after the other, each when the one before is Ready.

        A listening process is replaced when its successor listens. `timeout`: seconds that open streams get to
        finish. Raises UserError when one does not come up.
        """
        for running in self._of(component):
            async with running.lock:
                for index in running.indexes(component):
                    try:
                        await self.supervised.restart(running, index, drain=drain, timeout=timeout)
                    except (KeyError, ActorUnreachable, TimeoutError) as error:
                        message = f"{running.full_name(index)} did not restart: {plain(error)}"
                        raise UserError(message, "see dynamo ps and dynamo logs") from None
        self.node.changes.notify()

    async def drain(self, component: str, timeout: float = FINISH) -> None:
        """Take the processes of a component out of service: no new requests, open ones finish, then they end."""
        for running in self._of(component):
            async with running.lock:
                await self._drain(running, running.indexes(component), timeout)
        self.node.changes.notify()

    async def _drain(self, running: Running, indexes: Sequence[int], timeout: float) -> None:
        """Each is gone when it has ended, whatever the others still do."""

        async def drain(index: int) -> None:
            running.leaving.add(index)
            try:
                await self.supervised.end([(running, index)], timeout)
                running.give_back(index)
            finally:
                running.leaving.discard(index)
            self.node.changes.notify()

        for error in await asyncio.gather(*(drain(index) for index in indexes), return_exceptions=True):
            if error is not None:
                raise error

    async def scale(
        self, component: str, replicas: int, timeout: float = FINISH, *, leave: Collection[int] = ()
    ) -> None:
        """Run `replicas` processes of a component. More start at once. `leave` go first, then the highest numbers."""
        for running in self._of(component):
            running.check(replicas)
        for running in self._of(component):
            async with running.lock:
                if self.groups.get(running.group.name) is not running:
                    continue  # a reload has taken it out of the graph
                while len(running.replicas) < replicas and self.supervised.supervisor is not None:
                    index = next(i for i in range(257) if i not in running.replicas)
                    running.take(index)
                    self.supervised.spawn(running, index)
                order = sorted(running.replicas, key=lambda index: (index in leave, index))
                await self._drain(running, order[replicas:], timeout)
        self.node.changes.notify()

    async def switch(
        self, component: str, role: DisaggregationMode, timeout: float = FINISH, epoch: int | None = None
    ) -> None:
        """Have the workers of a component change their role, one after the other. Raises UserError."""
        for running in self._of(component):
            async with running.lock:
                for index in running.indexes(component):
                    await running.switch(index, role, timeout, epoch)
        self.node.changes.notify()

    async def change(self, graph: Graph, timeout: float = FINISH) -> None:
        """Become `graph` with the fewest restarts: only process groups that differ are drained and started anew.

        Replicas follow one after the other. A process with the same address keeps its socket, so no connection is
        refused. Raises UserError with nothing changed when ports or GPUs cannot be had.
        """
        async with contextlib.AsyncExitStack() as locks:
            for running in list(self.groups.values()):
                await locks.enter_async_context(running.lock)
            await GraphChange(self, graph).apply(timeout)
        self.node.changes.notify()

    def drained(self, graph: Graph) -> dict[str, int]:
        """Process groups that were taken out of service, and how many processes `graph` wants of each."""
        wanted = {group.name: group.replicas for group in groups(graph, self.node.name)}
        empty = [name for name, running in self.groups.items() if not running.replicas]
        return {name: wanted[name] for name in empty if wanted.get(name)}

    def has(self, component: str) -> bool:
        """Whether a component of that name (or process group, or process) is in the graph."""
        return bool(self._of(component))

    def components(self) -> list[str]:
        """Names of all components."""
        return [spec.name for running in self.groups.values() for spec in running.group.services]

    def _of(self, component: str) -> list[Running]:
        """Process groups that have a component of that name, or are called so; or one of whose processes is."""
        name = component.removeprefix(f"{self.name}/").split(".")[0]
        return [
            running
            for running in self.groups.values()
            if name in (running.group.name, *(spec.name for spec in running.group.services))
            and ("." not in component or running.indexes(component))
        ]

    def _release(self) -> None:
        for running in self.groups.values():
            for index in list(running.replicas):
                running.give_back(index)
            close_all(running.sockets)
            running.leave_sockets()
        self.groups.clear()
