"""One graph that runs: its processes under a supervisor of their own, its sockets, its GPUs."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dynamod.actor import ActorUnreachable, Backoff, Policy, Ref, Spec, Supervisor, System
from dynamod.graph.diff import diff
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.message.errors import UserError

from .gpus import VARIABLE, Gpus
from .groups import Group, groups, require_some
from .paths import office_path
from .plan import HostPlan, ServicePlan
from .process import Output, Process
from .sockets import listen, url_of
from .spawn import environment
from .stall import clocks_of

log = logging.getLogger("dynamod.daemon")

POLICY = Policy(intensity=5, period=60.0, escalate=False)
BACKOFF = Backoff(initial=0.2, factor=2.0, maximum=10.0, reset_after=60.0)
STOP_GRACE = 3.0


class Row(msgspec.Struct, frozen=True):
    """One component of one process, as `ps` shows it. Times in seconds."""

    graph: str
    component: str
    process: str
    replica: int
    state: str
    pid: int
    restarts: int
    uptime: float | None
    last_error: str
    gpus: list[str]
    guest: str = ""


def down(graph: str, component: str, why: str) -> Row:
    """The row of a component whose graph could not start."""
    return Row(graph, component, f"{graph}/{component}.0", 0, "Fatal", 0, 0, None, why, [])


@dataclass(slots=True)
class _Running:
    group: Group
    sock: socket.socket | None
    replicas: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # index -> devices
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one change at a time

    def indexes(self, component: str) -> list[int]:
        """The replicas that `Worker` or `Worker.1` means."""
        number = component.rpartition("/")[2].partition(".")[2]
        return [index for index in sorted(self.replicas) if number in ("", str(index))]


class GraphRunner:
    """Starts, watches and changes the processes of a graph. `changed` is called whenever a row may have changed."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        system: System,
        *,
        folder: Path,
        link: Path,
        gpus: Gpus,
        output: Output,
        changed: Callable[[], None],
        silent: Callable[[int, bool], None],
        node: str = "",
    ) -> None:
        self._node = node
        self.name = name
        self.graph = graph
        self._system = system
        self._folder, self._link = folder, link
        self._gpus = gpus
        self._output, self._changed, self._silent = output, changed, silent
        self._groups: dict[str, _Running] = {}
        self._supervisor: Supervisor | None = None
        self.origin: Any = None  # how to start the graph again after a restart of the daemon

    async def start(self) -> None:
        """Bind the ports, take the GPUs, start all processes. Raises UserError with nothing left behind."""
        try:
            require_some(self.graph, self._node)
            for group in groups(self.graph, self._node):
                clocks_of([spec.config for spec in group.services])  # wrong ones are told before anything runs
                listener = group.listener()
                sock = None
                if listener is not None:
                    spec, host, port = listener
                    sock = listen(host, port, spec.name)
                self._groups[group.name] = _Running(group, sock)
                for index in range(group.replicas):
                    self._take(group, index)
            ref = self._system.start(self.name, lambda: Supervisor((), POLICY), restart="temporary")
            await self._system.ready(ref, timeout=5)
            cell = self._system.cell(ref)
            assert cell is not None
            assert isinstance(cell.actor, Supervisor)
            self._supervisor = cell.actor
        except BaseException:
            self._release()
            raise
        for running in self._groups.values():
            for index in list(running.replicas):
                self._spawn(running, index)
        self._changed()

    async def stop(self) -> None:
        """End all processes at once and give everything back."""
        if self._supervisor is not None:
            names = [child.name for child in self._supervisor.children()]
            await asyncio.gather(*(self._supervisor.stop_child(name) for name in names))
            await self._system.root.stop_child(self.name)
            self._supervisor = None
        self._release()
        self._changed()

    def rows(self) -> list[Row]:
        """One row per component and replica."""
        supervisor = self._supervisor
        if supervisor is None:
            return []
        children = {child.name: child for child in supervisor.children()}
        rows: list[Row] = []
        for running in self._groups.values():
            for index, devices in sorted(running.replicas.items()):
                name = process_name(running.group, index)
                child = children.get(name)
                cell = supervisor.child(name)
                facts = cell.actor.facts() if cell is not None and isinstance(cell.actor, Process) else None
                for spec in running.group.services:
                    state = child.state if child is not None else "Stopped"
                    if facts is not None and state in ("Starting", "Ready", "Draining"):
                        state = facts.components.get(spec.name, state)
                        state = "Silent" if facts.silent else state
                    trouble = child.last_error.removeprefix("ProcessEnded: ") if child is not None else ""
                    rows.append(
                        Row(
                            graph=self.name,
                            component=spec.name,
                            process=f"{self.name}/{name}",
                            replica=index,
                            state=state,
                            pid=facts.pid if facts is not None else 0,
                            restarts=child.restarts if child is not None else 0,
                            uptime=facts.uptime if facts is not None else None,
                            last_error=(facts.silent if facts is not None else "") or trouble,
                            gpus=list(devices),
                        )
                    )
        return rows

    def services(self) -> list[ServiceSpec]:
        """The services that run on this node."""
        return [spec for running in self._groups.values() for spec in running.group.services]

    def urls(self) -> list[str]:
        """Where clients reach the graph."""
        return [url_of(running.sock) for running in self._groups.values() if running.sock is not None]

    def fatal(self) -> list[Row]:
        """Components that are given up."""
        return [row for row in self.rows() if row.state == "Fatal"]

    def ready(self) -> bool:
        """Whether all components are Ready."""
        rows = self.rows()
        return bool(rows) and all(row.state == "Ready" for row in rows)

    def processes(self, component: str) -> list[Process]:
        """The live processes of a component (or of all, for an empty name)."""
        found: list[Process] = []
        if self._supervisor is None:
            return found
        for running in self._groups.values():
            if component and not self._names(running, component):
                continue
            for index in sorted(running.replicas):
                cell = self._supervisor.child(process_name(running.group, index))
                if cell is not None and isinstance(cell.actor, Process):
                    found.append(cell.actor)
        return found

    async def restart(self, component: str, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Restart the processes of a component, one after the other, each when the one before is Ready.

        Raises UserError when one does not come up.
        """
        for running in self._of(component):
            async with running.lock:
                for index in running.indexes(component):
                    await self._restart(running, index, drain, timeout)
        self._changed()

    async def _restart(self, running: _Running, index: int, drain: bool, timeout: float) -> None:
        supervisor, name = self._supervisor, process_name(running.group, index)
        if supervisor is None:
            return
        if any(child.name == name and child.state == "Fatal" for child in supervisor.children()):
            self._spawn(running, index)
            return
        try:
            ref = await supervisor.restart_child(name, drain=drain, timeout=timeout)
            self._changed()
            await self._system.ready(ref, timeout=600)
        except (KeyError, ActorUnreachable) as error:
            why = str(error).replace("ProcessEnded: ", "")
            raise UserError(f"{self.name}/{name} did not restart: {why}", "see dynamo ps and dynamo logs") from None

    async def drain(self, component: str, timeout: float = 600.0) -> None:
        """Take the processes of a component out of service: no new requests, open ones finish, then they end."""
        for running in self._of(component):
            async with running.lock:
                await self._drain(running, running.indexes(component), timeout)
        self._changed()

    async def _drain(self, running: _Running, indexes: Sequence[int], timeout: float) -> None:
        if (supervisor := self._supervisor) is None:
            return
        names = [process_name(running.group, index) for index in indexes]
        await asyncio.gather(*(supervisor.stop_child(name, drain=True, timeout=timeout) for name in names))
        for index in indexes:
            self._give_back(running, index)

    async def scale(self, component: str, replicas: int, timeout: float = 600.0) -> None:
        """Run `replicas` processes of a component. More start at once; the highest numbers drain and go."""
        if not 0 <= replicas <= 256:
            raise UserError(f"{replicas} replicas are out of range", "choose a number from 0 to 256")
        for running in self._of(component):
            async with running.lock:
                if self._groups.get(running.group.name) is not running:
                    continue  # a reload has taken it out of the graph
                while len(running.replicas) < replicas and self._supervisor is not None:
                    index = next(i for i in range(257) if i not in running.replicas)
                    self._take(running.group, index)
                    self._spawn(running, index)
                await self._drain(running, sorted(running.replicas)[replicas:], timeout)
        self._changed()

    async def change(self, graph: Graph, timeout: float = 30.0) -> None:
        """Become `graph` with the fewest restarts: only process groups that differ are drained and started anew.

        Replicas follow one after the other. Who listens at the same place keeps its socket, so no connection is
        refused. Raises UserError with nothing changed when ports or GPUs cannot be had.
        """
        async with contextlib.AsyncExitStack() as locks:
            for running in list(self._groups.values()):
                await locks.enter_async_context(running.lock)
            await self._change(graph, timeout)
        self._changed()

    async def _change(self, graph: Graph, timeout: float) -> None:
        if (supervisor := self._supervisor) is None:
            return
        before, wanted = self._groups, {group.name: group for group in groups(graph, self._node)}
        changes = diff(self.graph, graph).changed or {}
        fresh = {name for name, group in wanted.items() if name not in before or _differs(before[name], group, changes)}
        stale = [running for name, running in before.items() if name not in wanted or name in fresh]
        sockets = self._sockets({name: wanted[name] for name in fresh}, stale)
        unused = {running.sock for running in stale} - {None, *sockets.values()}
        held = self._gpus.table()
        try:
            replicas = self._replicas(wanted)
        except UserError:
            self._gpus.restore(held)
            _close({*sockets.values()} - {running.sock for running in stale})
            raise
        self.graph = graph
        ends = [  # what goes for good, and what leaves devices to others
            (running, index)
            for name, running in before.items()
            for index, devices in running.replicas.items()
            if replicas.get(name, {}).get(index) != devices
        ]
        await self._end(ends, timeout)
        _close(unused)
        for running in stale:
            running.sock = None
        if self._supervisor is not supervisor:  # the graph was stopped meanwhile
            for name, indexes in replicas.items():
                for index in indexes:
                    self._gpus.give_back(f"{self.name}/{name}.{index}")
            _close({*sockets.values()})
            return
        old = {(name, index) for name, running in before.items() for index in running.replicas}
        old -= {(running.group.name, index) for running, index in ends}
        for running in before.values():
            running.replicas = {}  # who waits for the lock of a group that is gone finds it empty
        self._groups = {name: before.get(name) or _Running(group, None) for name, group in wanted.items()}
        for name, running in self._groups.items():
            running.group, running.replicas = wanted[name], replicas[name]
            running.sock = sockets.get(name, running.sock)
            for index in replicas[name]:
                if (name, index) not in old:
                    self._spawn(running, index)
        self._changed()
        rolling = [self._roll(self._groups[n], [i for name, i in sorted(old) if name == n], timeout) for n in fresh]
        await asyncio.gather(*rolling)

    async def _roll(self, running: _Running, indexes: Sequence[int], timeout: float) -> None:
        """Start replicas anew with what they are now; the others stay as they are when one does not come up."""
        for count, index in enumerate(indexes, 1):
            await self._end([(running, index)], timeout)
            if self._supervisor is None:
                return
            ref = self._spawn(running, index)
            if count == len(indexes):
                return
            try:
                await self._system.ready(ref, timeout=600)
            except (ActorUnreachable, TimeoutError) as error:
                log.error("%s fails with its new settings, the others keep the old: %s", ref.path.lstrip("/"), error)
                return

    async def _end(self, ends: Sequence[tuple[_Running, int]], timeout: float) -> None:
        if (supervisor := self._supervisor) is not None:
            names = [process_name(running.group, index) for running, index in ends]
            await asyncio.gather(*(supervisor.stop_child(name, drain=True, timeout=timeout) for name in names))

    def _sockets(self, fresh: Mapping[str, Group], stale: Sequence[_Running]) -> dict[str, socket.socket]:
        """Sockets of the groups that will start: those of groups that end where the place is the same, or new ones."""
        free = {running.group.place(): running.sock for running in stale}
        sockets: dict[str, socket.socket] = {}
        try:
            for name, group in fresh.items():
                if (listener := group.listener()) is not None:
                    spec, host, port = listener
                    sockets[name] = free.pop((host, port), None) or listen(host, port, spec.name)
        except UserError:
            _close({*sockets.values()} - {running.sock for running in stale})
            raise
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
                self._gpus.give_back(f"{self.name}/{name}.{index}")
            replicas[name] = stay
        for name, group in wanted.items():
            before = self._groups.get(name)
            stay = replicas.setdefault(name, {})
            count = len(before.replicas) if before and before.group.replicas == group.replicas else group.replicas
            free = (index for index in range(257) if index not in stay)
            for index in [next(free) for _ in range(count - len(stay))]:
                stay[index] = self._gpus.take(f"{self.name}/{name}.{index}", group.gpus) if group.gpus else []
        return {name: replicas[name] for name in wanted}

    def has(self, component: str) -> bool:
        """Whether a component of that name (or process group, or process) is in the graph."""
        return any(self._names(running, component) for running in self._groups.values())

    def components(self) -> list[str]:
        """Names of all components."""
        return [spec.name for running in self._groups.values() for spec in running.group.services]

    def _names(self, running: _Running, component: str) -> bool:
        name = component.removeprefix(f"{self.name}/").split(".")[0]
        found = name == running.group.name or any(spec.name == name for spec in running.group.services)
        return found and ("." not in component or bool(running.indexes(component)))

    def _of(self, component: str) -> list[_Running]:
        return [running for running in self._groups.values() if self._names(running, component)]

    def _take(self, group: Group, index: int) -> None:
        owner = f"{self.name}/{process_name(group, index)}"
        devices = self._gpus.take(owner, group.gpus) if group.gpus else []
        self._groups[group.name].replicas[index] = devices

    def _give_back(self, running: _Running, index: int) -> None:
        running.replicas.pop(index, None)
        self._gpus.give_back(f"{self.name}/{process_name(running.group, index)}")

    def _release(self) -> None:
        for running in self._groups.values():
            for index in list(running.replicas):
                self._give_back(running, index)
            if running.sock is not None:
                running.sock.close()
        self._groups.clear()

    def _spawn(self, running: _Running, index: int) -> Ref:
        assert self._supervisor is not None
        group, name = running.group, process_name(running.group, index)
        environ = self._environ(running, index)
        fds = [running.sock.fileno()] if running.sock is not None else []
        clocks = clocks_of([spec.config for spec in group.services])

        def factory() -> Process:
            return Process(
                self._plan(running, index),  # with what the other components are told by now
                output=self._output,
                changed=self._changed,
                silent=self._silent,
                environ=environ,
                fds=fds,
                grace=STOP_GRACE,
                warm="worker" if running.sock is None else "ingress",
                clocks=clocks,
            )

        ref = self._supervisor.start_child(Spec(name, factory, backoff=BACKOFF, shutdown=STOP_GRACE + 1.5))
        log.debug("started %s (%s)", name, ", ".join(spec.name for spec in group.services))
        return ref

    def _plan(self, running: _Running, index: int) -> HostPlan:
        group, name = running.group, process_name(running.group, index)
        listener = group.listener()
        services = []
        for spec in group.services:
            sockets = {}
            if running.sock is not None and listener is not None and spec.name == listener[0].name:
                sockets["http"] = 0  # the only descriptor that goes with the plan
            services.append(ServicePlan(spec.name, spec.to_dict(), spec.actor, sockets))
        return HostPlan(
            graph=self.name,
            name=f"{self.name}/{name}",
            index=index,
            services=tuple(services),
            link=str(self._link),
            office=str(office_path(self._folder, f"{self.name}.{name}")),
            config=self.graph.config,
            env={"DYNAMO_SERVICE_CONFIG": msgspec.json.encode(self.graph.config).decode()},
        )

    def _environ(self, running: _Running, index: int) -> Mapping[str, str]:
        environ = environment()
        for spec in running.group.services:
            environ.update(spec.envs)
        devices = running.replicas[index]
        if running.group.gpus:
            environ[VARIABLE] = ",".join(devices)
        return environ


def _differs(running: _Running, new: Group, changes: Mapping[str, Sequence[str]]) -> bool:
    """Whether the processes of a group must be started anew; more or fewer of them is no reason."""
    names = [spec.name for spec in new.services]
    return names != [spec.name for spec in running.group.services] or any(
        set(changes.get(name, ())) - {"workers"} for name in names
    )


def _close(sockets: Collection[socket.socket | None]) -> None:
    for sock in sockets:
        if sock is not None:
            sock.close()


def process_name(group: Group, index: int) -> str:
    """`Worker.0`."""
    return f"{group.name}.{index}"
