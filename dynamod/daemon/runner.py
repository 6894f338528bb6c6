"""One graph that runs: its processes under a supervisor of their own, its sockets, its GPUs."""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from dynamod.actor import ActorUnreachable, Policy, Ref, Supervisor
from dynamod.actor.supervisor import ChildStatistics
from dynamod.graph.diff import diff
from dynamod.graph.graph import Graph
from dynamod.message.control import FINISH
from dynamod.message.discovery import DisaggregationMode
from dynamod.message.errors import UserError

from .groups import Group, groups, require_some
from .process import ProcessRecord
from .rows import Row
from .running import Running
from .sockets import Sockets, TlsFiles, close_all, url_of
from .spawn import Origin
from .stand_in import stand_in

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

POLICY = Policy(intensity=5, period=60.0, escalate=False)
IN_TERMINAL = 2.0
"""Seconds that open answers of a graph in a terminal get to finish when it is stopped."""
STARTS = 5.0
"""Seconds for which clients wait for an ingress process that is starting, in the listener's backlog."""
READY = 600.0
"""Seconds that a process gets to become Ready before the next one is touched."""


class GraphRunner:
    """Starts, watches and changes the processes of a graph.

    `session`: the command in whose terminal the graph runs; empty for one that runs until it is stopped. `kept`: it was
    handed over to a service, which starts it again after a restart. `grace`: seconds that open answers get to finish
    when it is stopped.
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
        self.grace = grace if grace is not None else IN_TERMINAL if session else node.grace
        self.memos: dict[str, object] = {}  # what processes leave to those that follow them, by component
        self.by_hand = Counter[str]()  # changes of the number of replicas, or of roles, without a planner's order
        self.records: dict[str, ProcessRecord] = {}  # of each process that was started, by the supervisor's name
        self._groups: dict[str, Running] = {}
        self._supervisor: Supervisor | None = None
        self._stopping = asyncio.Lock()

    async def start(self) -> None:
        """Bind the ports, take the GPUs, start all processes. Raises UserError with nothing left behind."""
        try:
            require_some(self.graph, self.node.name)
            for group in groups(self.graph, self.node.name):
                listener = group.listener()
                sockets = self.node.listen(*listener) if listener is not None else ()
                running = self._groups[group.name] = Running(self, group, sockets)
                running.clocks()  # wrong ones are an error before anything runs
                for index in range(group.replicas):
                    running.take(index)
            self._supervisor = await self.node.system.supervisor(self.name, POLICY)
        except BaseException:
            self._release()
            raise
        for running in self._groups.values():
            for index in list(running.replicas):
                self._spawn(running, index)
        self._supervisor.context.task(stand_in(self._ports), "stand-in")
        self.node.changed()

    def _ports(self) -> Iterator[tuple[socket.socket, bool, TlsFiles]]:
        """The sockets for clients, whether a process serves each, soon will or need not, and the TLS files."""
        for running in self._groups.values():
            if running.sockets:
                names = running.names()
                records = [record for name in names if (record := self._record(name)) is not None]
                served = not names or any(record.ready or record.age < STARTS for record in records)
                yield from ((sock, served, running.tls) for sock in running.sockets)

    async def stop(self, grace: float | None = None) -> None:
        """End the processes that listen for clients, then all others, and give everything back.

        `grace`: seconds that open answers get to finish; None: the graph's own. A second caller waits for the first.
        """
        async with self._stopping:
            if self._supervisor is not None:
                await self._stop_ingress(self._supervisor, grace)
                names = [child.name for child in self._supervisor.children()]
                await asyncio.gather(*(self._supervisor.stop_child(name) for name in names))
                await self.node.system.root.stop_child(self.name)
                self._supervisor = None
            self._release()
            self.node.changed()

    async def _stop_ingress(self, supervisor: Supervisor, grace: float | None) -> None:
        names = [name for running in self._groups.values() if running.sockets for name in running.names()]
        records = [record for name in names if (record := self._record(name)) is not None]
        if grace is not None:
            await asyncio.gather(*(record.set_grace(grace) for record in records))
        longest = max((record.to_stop for record in records), default=0.0)
        await asyncio.gather(*(supervisor.stop_child(name, timeout=longest + 1.5) for name in names))

    def rows(self, *, leaving: bool = True) -> list[Row]:
        """One row per component and replica; with `leaving` also for processes about to take its place or to leave."""
        if (supervisor := self._supervisor) is None:
            return []
        children, rows = {child.name: child for child in supervisor.children()}, list[Row]()
        for running in self._groups.values():
            for index in sorted(running.replicas):
                current = running.child(index)
                others = [other for other, replica in running.others.items() if replica == index and leaving]
                for child in (current, *others):
                    for spec in running.group.services:
                        row = self._row(spec.name, running, index, children.get(child), self._record(child))
                        over = index in running.leaving and row.state in ("Ready", "Stopped")
                        if over or (child != current and row.state == "Ready"):
                            row = msgspec.structs.replace(row, state="Draining")  # it will hear of it at once
                        rows.append(row)
        return rows

    def _row(
        self,
        component: str,
        running: Running,
        index: int,
        child: ChildStatistics | None,
        record: ProcessRecord | None,
    ) -> Row:
        facts = record.facts() if record is not None else None
        state = child.state if child is not None else "Draining" if facts is not None else "Stopped"
        if facts is not None and state in ("Starting", "Ready", "Draining"):
            state = facts.components.get(component, state)
            state = "Silent" if facts.silent else state
        trouble = child.last_error.removeprefix("ProcessEnded: ") if child is not None else ""
        roles = (facts.roles if facts is not None else {}) or running.roles.get(index, {})
        row = Row(
            graph=self.name,
            component=component,
            process=running.full_name(index),
            replica=index,
            state=state,
            pid=facts.pid if facts is not None else 0,
            restarts=child.restarts if child is not None else 0,
            uptime=facts.uptime if facts is not None else None,
            last_error=(facts.silent if facts is not None else "") or trouble,
            gpus=list(running.replicas[index]),
            session=self.session,
            detail=facts.detail if facts is not None and state in ("Starting", "Ready") else "",
            role=roles.get(component, ""),
        )
        return row.of_process(facts) if facts is not None else row

    def _record(self, child: str) -> ProcessRecord | None:
        """The record of a process that runs."""
        record = self.records.get(child)
        return record if record is not None and not record.ended else None

    def urls(self) -> list[str]:
        """Where clients reach the graph."""
        return [
            url_of(running.sockets, "https" if running.tls else "http")
            for running in self._groups.values()
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
        """All live processes."""
        return [
            record
            for running in self._groups.values()
            for index in sorted(running.replicas)
            if (record := self._record(running.child(index))) is not None
        ]

    async def restart(self, component: str, *, drain: bool = True, timeout: float = FINISH) -> None:
        """Restart the processes of a component, one after the other, each when the one before is Ready.

        Who listens for clients is replaced when its successor listens. `timeout`: seconds that open streams get to
        finish. Raises UserError when one does not come up.
        """
        for running in self._of(component):
            async with running.lock:
                for index in running.indexes(component):
                    try:
                        await self._restart(running, index, drain, timeout)
                    except (KeyError, ActorUnreachable, TimeoutError) as error:
                        message = f"{running.full_name(index)} did not restart: {_plain(error)}"
                        raise UserError(message, "see dynamo ps and dynamo logs") from None
        self.node.changed()

    async def _restart(self, running: Running, index: int, drain: bool, timeout: float) -> None:
        supervisor, name = self._supervisor, running.child(index)
        if supervisor is None:
            return
        if self._state(running, index) == "Fatal":
            self._spawn(running, index)
        elif drain and running.overlaps and self._state(running, index) == "Ready":
            await self._succeed(running, index, timeout)
        else:
            ref = await supervisor.restart_child(name, drain=drain, timeout=timeout)
            self.node.changed()
            await self.node.system.ready(ref, timeout=READY)

    async def _succeed(self, running: Running, index: int, timeout: float) -> None:
        """Start the next process of a replica beside the one that serves; when it is Ready that one leaves.

        The old one finishes its streams on its own time. Raises ActorUnreachable with nothing changed.
        """
        supervisor, old, new = self._supervisor, running.child(index), self._free_name(running, index)
        assert supervisor is not None
        running.others[new] = index
        try:
            ref = supervisor.start_child(running.spec(index, new))
            self.node.changed()
            await self.node.system.ready(ref, timeout=READY)
        except BaseException:
            del running.others[new]
            await supervisor.stop_child(new)
            raise
        running.children[index] = new
        running.others[old] = running.others.pop(new)
        supervisor.context.task(self._retire(supervisor, running, old, timeout), f"retire {old}")

    async def _retire(self, supervisor: Supervisor, running: Running, child: str, timeout: float) -> None:
        try:
            await supervisor.stop_child(child, drain=True, timeout=timeout)
        finally:
            del running.others[child]
            self.records.pop(child, None)
            self.node.changed()

    def _free_name(self, running: Running, index: int) -> str:
        """A name for the next process of a replica."""
        assert self._supervisor is not None
        children, name, number = self._supervisor.children(), running.name(index), 1
        taken = {child.name for child in children if child.state != "Fatal"}
        while name in taken or self._supervisor.lives(name):  # the second: it is leaving
            number += 1
            name = f"{running.name(index)}+{number}"
        return name

    async def drain(self, component: str, timeout: float = FINISH) -> None:
        """Take the processes of a component out of service: no new requests, open ones finish, then they end."""
        for running in self._of(component):
            async with running.lock:
                await self._drain(running, running.indexes(component), timeout)
        self.node.changed()

    async def _drain(self, running: Running, indexes: Sequence[int], timeout: float) -> None:
        """Each is gone when it has ended, whatever the others still do."""

        async def drain(index: int) -> None:
            running.leaving.add(index)
            try:
                await self._end([(running, index)], timeout)
                running.give_back(index)
            finally:
                running.leaving.discard(index)
            self.node.changed()

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
                if self._groups.get(running.group.name) is not running:
                    continue  # a reload has taken it out of the graph
                while len(running.replicas) < replicas and self._supervisor is not None:
                    index = next(i for i in range(257) if i not in running.replicas)
                    running.take(index)
                    self._spawn(running, index)
                order = sorted(running.replicas, key=lambda index: (index in leave, index))
                await self._drain(running, order[replicas:], timeout)
        self.node.changed()

    async def switch(
        self, component: str, role: DisaggregationMode, timeout: float = FINISH, epoch: int | None = None
    ) -> None:
        """Have the workers of a component change their role, one after the other. Raises UserError."""
        for running in self._of(component):
            async with running.lock:
                for index in running.indexes(component):
                    await running.switch(index, role, timeout, epoch)
        self.node.changed()

    async def change(self, graph: Graph, timeout: float = FINISH) -> None:
        """Become `graph` with the fewest restarts: only process groups that differ are drained and started anew.

        Replicas follow one after the other. Who listens at the same place keeps its socket, so no connection is
        refused. Raises UserError with nothing changed when ports or GPUs cannot be had.
        """
        async with contextlib.AsyncExitStack() as locks:
            for running in list(self._groups.values()):
                await locks.enter_async_context(running.lock)
            await self._change(graph, timeout)
        self.node.changed()

    async def _change(self, graph: Graph, timeout: float) -> None:
        if (supervisor := self._supervisor) is None:
            return
        before, wanted = self._groups, {group.name: group for group in groups(graph, self.node.name)}
        changes = diff(self.graph, graph).changed or {}
        fresh = {name for name, group in wanted.items() if name not in before or _differs(before[name], group, changes)}
        stale = [running for name, running in before.items() if name not in wanted or name in fresh]
        with contextlib.ExitStack() as undo:
            undo.callback(self.node.gpus.restore, self.node.gpus.table())
            sockets = self._sockets({name: wanted[name] for name in fresh}, stale, undo)
            replicas = self._replicas(wanted)
            undo.pop_all()
        unused = {sock for running in stale for sock in running.sockets} - {*chain(*sockets.values())}
        self.graph = graph
        ends = [  # what goes for good, and what leaves devices to others
            (running, index)
            for name, running in before.items()
            for index, devices in running.replicas.items()
            if replicas.get(name, {}).get(index) != devices
        ]
        await self._end(ends, timeout)
        close_all(unused)
        for running in stale:
            running.sockets = ()
        if self._supervisor is not supervisor:  # the graph was stopped meanwhile
            for name, indexes in replicas.items():
                for index in indexes:
                    self.node.gpus.give_back(f"{self.name}/{name}.{index}")
            close_all({*chain(*sockets.values())})
            return
        old = {(name, index) for name, running in before.items() for index in running.replicas}
        old -= {(running.group.name, index) for running, index in ends}
        for running in before.values():
            running.replicas = {}  # who waits for the lock of a group that is gone finds it empty
        self._groups = {name: before.get(name) or Running(self, group, ()) for name, group in wanted.items()}
        for name, running in self._groups.items():
            self.by_hand[name] += wanted[name].replicas != running.group.replicas
            running.group, running.replicas = wanted[name], replicas[name]
            running.sockets = sockets.get(name, running.sockets)
            for index in replicas[name]:
                if (name, index) not in old:
                    self._spawn(running, index)
        self.node.changed()
        rolling = [self._roll(self._groups[n], [i for name, i in sorted(old) if name == n], timeout) for n in fresh]
        await asyncio.gather(*rolling)

    async def _roll(self, running: Running, indexes: Sequence[int], timeout: float) -> None:
        """Start replicas anew with what they are now; the others stay as they are when one does not come up."""
        for count, index in enumerate(indexes, 1):
            try:
                if self._state(running, index) == "Ready" and running.overlaps:
                    await self._succeed(running, index, timeout)
                    continue
                await self._end([(running, index)], timeout)
                if self._supervisor is None:
                    return
                ref = self._spawn(running, index)
                if count < len(indexes):
                    await self.node.system.ready(ref, timeout=READY)
            except (ActorUnreachable, TimeoutError) as error:
                who = "it keeps" if self._state(running, index) == "Ready" else "the others keep"
                name = running.full_name(index)
                log.error("%s fails with its new settings, %s the old: %s", name, who, _plain(error))
                return

    def _state(self, running: Running, index: int) -> str:
        """The supervisor's state of the process that is a replica; empty when there is none."""
        children = self._supervisor.children() if self._supervisor is not None else ()
        return next((child.state for child in children if child.name == running.child(index)), "")

    async def _end(self, ends: Collection[tuple[Running, int]], timeout: float) -> None:
        if (supervisor := self._supervisor) is not None:
            names = [running.child(index) for running, index in ends]
            await asyncio.gather(*(supervisor.stop_child(name, drain=True, timeout=timeout) for name in names))

    def _sockets(
        self, fresh: Mapping[str, Group], stale: Sequence[Running], undo: contextlib.ExitStack
    ) -> dict[str, Sockets]:
        """Sockets of the groups that will start: those of groups that end where the place is the same, or new ones."""
        free = {running.group.place(): running.sockets for running in stale}
        sockets: dict[str, Sockets] = {}
        for name, group in fresh.items():
            if (listener := group.listener()) is not None:
                spec, hosts, port = listener
                if not (found := free.pop((hosts, port), ())):
                    found = self.node.listen(spec, hosts, port)
                    undo.callback(close_all, found)
                sockets[name] = found
        return sockets

    def _replicas(self, wanted: Mapping[str, Group]) -> dict[str, dict[int, list[str]]]:
        """Devices per replica of all groups to be. Replicas that ask for as many as before keep theirs."""
        replicas: dict[str, dict[int, list[str]]] = {}
        for name, running in self._groups.items():
            group = wanted.get(name)
            stay = dict(running.replicas) if group is not None and group.gpus == running.group.gpus else {}
            if group is not None and group.replicas != running.group.replicas:  # else scaled by hand, perhaps
                stay = dict(sorted(stay.items())[: group.replicas])
            for index in running.replicas.keys() - stay.keys():
                self.node.gpus.give_back(f"{self.name}/{name}.{index}")
            replicas[name] = stay
        for name, group in wanted.items():
            before = self._groups.get(name)
            stay = replicas.setdefault(name, {})
            by_hand = before is not None and before.replicas and before.group.replicas == group.replicas
            count = len(before.replicas) if before is not None and by_hand else group.replicas
            free = (index for index in range(257) if index not in stay)
            for index in [next(free) for _ in range(count - len(stay))]:
                stay[index] = self.node.gpus.take(f"{self.name}/{name}.{index}", group.gpus)
        return {name: replicas[name] for name in wanted}

    def drained(self, graph: Graph) -> dict[str, int]:
        """Process groups that were taken out of service, and how many processes `graph` wants of each."""
        wanted = {group.name: group.replicas for group in groups(graph, self.node.name)}
        empty = [name for name, running in self._groups.items() if not running.replicas]
        return {name: wanted[name] for name in empty if wanted.get(name)}

    def has(self, component: str) -> bool:
        """Whether a component of that name (or process group, or process) is in the graph."""
        return bool(self._of(component))

    def components(self) -> list[str]:
        """Names of all components."""
        return [spec.name for running in self._groups.values() for spec in running.group.services]

    def _of(self, component: str) -> list[Running]:
        """Process groups that have a component of that name, or are called so; or one of whose processes is."""
        name = component.removeprefix(f"{self.name}/").split(".")[0]
        return [
            running
            for running in self._groups.values()
            if name in (running.group.name, *(spec.name for spec in running.group.services))
            and ("." not in component or running.indexes(component))
        ]

    def _release(self) -> None:
        for running in self._groups.values():
            for index in list(running.replicas):
                running.give_back(index)
            close_all(running.sockets)
        self._groups.clear()

    def _spawn(self, running: Running, index: int) -> Ref:
        assert self._supervisor is not None
        name = running.children[index] = self._free_name(running, index)
        ref = self._supervisor.start_child(running.spec(index, name))
        log.debug("started %s (%s)", ref.path, ", ".join(spec.name for spec in running.group.services))
        return ref


def _differs(running: Running, new: Group, changes: Mapping[str, Sequence[str]]) -> bool:
    """Whether the processes of a group must be started anew; more or fewer of them is no reason."""
    names = [spec.name for spec in new.services]
    return names != [spec.name for spec in running.group.services] or any(
        set(changes.get(name, ())) - {"workers"} for name in names
    )


def _plain(error: BaseException) -> str:
    return str(error).replace("ProcessEnded: ", "")
