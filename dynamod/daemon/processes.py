"""The processes of one graph under their supervisor: start, replace, end."""

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from dynamod.actor import Policy, Ref, Supervisor
from dynamod.actor.statistics import ChildStatistics

from .process import ProcessRecord
from .running import Running

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

POLICY = Policy(intensity=5, period=60.0, escalate=False)
READY = 600.0
"""Seconds that a process gets to become Ready before the next one is touched."""


class Processes:
    """There are none before `open` and after `close`. `records`: of each process, by the supervisor's name."""

    def __init__(self, node: "Node", graph: str) -> None:
        self._node, self._graph = node, graph
        self.records: dict[str, ProcessRecord] = {}
        self.supervisor: Supervisor | None = None

    async def open(self) -> Supervisor:
        """Start the supervisor."""
        self.supervisor = await self._node.system.supervisor(self._graph, POLICY)
        return self.supervisor

    async def close(self, ingress: Iterable[str], grace: float | None) -> None:
        """End the processes that listen for clients (`ingress`), then all others.

        `grace`: seconds that open answers get to finish; None: as each process was started with.
        """
        if (supervisor := self.supervisor) is None:
            return
        names = list(ingress)
        records = [record for name in names if (record := self.record(name)) is not None]
        if grace is not None:
            await asyncio.gather(*(record.set_grace(grace) for record in records))
        longest = max((record.to_stop for record in records), default=0.0)
        await asyncio.gather(*(supervisor.stop_child(name, timeout=longest + 1.5) for name in names))
        await asyncio.gather(*(supervisor.stop_child(child.name) for child in supervisor.children()))
        await self._node.system.root.stop_child(self._graph)
        self.supervisor = None

    def record(self, child: str) -> ProcessRecord | None:
        """The record of a process that runs."""
        record = self.records.get(child)
        return record if record is not None and not record.ended else None

    def children(self) -> dict[str, ChildStatistics]:
        """What the supervisor knows of each process, by name."""
        return {child.name: child for child in self.supervisor.children()} if self.supervisor is not None else {}

    def state(self, running: Running, index: int) -> str:
        """The supervisor's state of the process that is a replica; empty when there is none."""
        child = self.children().get(running.child(index))
        return child.state if child is not None else ""

    def spawn(self, running: Running, index: int) -> Ref:
        """Start the process of a replica."""
        assert self.supervisor is not None
        name = running.children[index] = self._free_name(running, index)
        ref = self.supervisor.start_child(running.spec(index, name))
        log.debug("started %s (%s)", ref.path, ", ".join(spec.name for spec in running.group.services))
        return ref

    async def restart(self, running: Running, index: int, *, drain: bool, timeout: float) -> None:
        """Replace the process of a replica, and wait until it is Ready.

        Raises KeyError, ActorUnreachable, TimeoutError when it does not come up.
        """
        if self.supervisor is None:
            return
        state = self.state(running, index)
        if state == "Fatal":
            self.spawn(running, index)
        elif drain and running.overlaps and state == "Ready":
            await self.succeed(running, index, timeout)
        else:
            ref = await self.supervisor.restart_child(running.child(index), drain=drain, timeout=timeout)
            self._node.changes.notify()
            await self.ready(ref)

    async def succeed(self, running: Running, index: int, timeout: float) -> None:
        """Start the next process of a replica alongside the one that serves; when it is Ready that one leaves.

        The old one finishes its streams on its own time. Raises ActorUnreachable with nothing changed.
        """
        supervisor, old, new = self.supervisor, running.child(index), self._free_name(running, index)
        assert supervisor is not None
        running.others[new] = index
        try:
            ref = supervisor.start_child(running.spec(index, new))
            self._node.changes.notify()
            await self.ready(ref)
        except BaseException:
            del running.others[new]
            await supervisor.stop_child(new)
            raise
        running.children[index] = new
        running.others[old] = running.others.pop(new)
        supervisor.context.task(self._retire(supervisor, running, old, timeout), f"retire {old}")

    async def ready(self, ref: Ref) -> None:
        """Wait until a process is Ready. Raises ActorUnreachable, TimeoutError."""
        await self._node.system.ready(ref, timeout=READY)

    async def end(self, replicas: Collection[tuple[Running, int]], timeout: float) -> None:
        """Drain the processes of replicas, and wait until each has ended."""
        if (supervisor := self.supervisor) is not None:
            names = [running.child(index) for running, index in replicas]
            await asyncio.gather(*(supervisor.stop_child(name, drain=True, timeout=timeout) for name in names))

    async def _retire(self, supervisor: Supervisor, running: Running, child: str, timeout: float) -> None:
        try:
            await supervisor.stop_child(child, drain=True, timeout=timeout)
        finally:
            del running.others[child]
            self.records.pop(child, None)
            self._node.changes.notify()

    def _free_name(self, running: Running, index: int) -> str:
        """A name for the next process of a replica."""
        assert self.supervisor is not None
        name, number = running.name(index), 1
        taken = {child.name for child in self.supervisor.children() if child.state != "Fatal"}
        while name in taken or self.supervisor.lives(name):  # the second: it is leaving
            number += 1
            name = f"{running.name(index)}+{number}"
        return name
