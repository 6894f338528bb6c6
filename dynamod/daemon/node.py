"""The node: everything that the daemon of this machine runs and knows."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from dynamod.actor import Actor, ActorError, Backoff, Crashed, Policy, Reason, Spec, System, Terminated, handle
from dynamod.discovery.etcd.bridge import EtcdBridge
from dynamod.discovery.etcd.client import library
from dynamod.discovery.memory import MemoryRegistry
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.message.control import Ping
from dynamod.message.errors import UserError
from dynamod.observe.capture import LineReader
from dynamod.observe.logstore import LogStore
from dynamod.runtime.liveness import Clocks, clocks_of
from dynamod.runtime.paths import RunFolder, link_path, logs_folder
from dynamod.runtime.snapshot import Snapshot, adopt, installed
from dynamod.transport.waiting import comes

from .attached import AttachedGraph
from .cluster import Cluster, cluster_of
from .gpus import Gpus, devices
from .link import Connection, LinkServer
from .lock import NodeLock
from .names import check_name, node_name, watch_namesakes
from .port_owner import port_owner
from .recent import Recent, SessionLogs
from .reload import Kept, follow
from .rows import Row, down
from .runner import GraphRunner
from .served import ServedModels
from .session import Session
from .sockets import Sockets, listen
from .spawn import Origin

log = logging.getLogger("dynamod.daemon")

FIRST_CLIENT = 30.0
"""Seconds that an ephemeral daemon waits for the first command or file."""
PING = 5.0
"""Seconds within which each part of the daemon answers the watchdog."""
ALWAYS = Policy(intensity=2**31)
"""Of the bridge to etcd: it is started again for ever, and the node goes on without it meanwhile."""
IN_SERVICE = 30.0
REPORT = 0.5
"""Seconds between two looks at the graphs of sessions."""


class NodeHeld(UserError):
    """Another daemon holds the node."""


class Node(Actor):
    """Graphs of this machine, sessions of commands, users' files, the registry and its leases.

    `ephemeral`: end with the last session, file and graph. `first`: the connection of the command that started us.
    `control` makes the actor of the control socket.
    """

    def __init__(
        self,
        system: System,
        path: Path,
        *,
        control: "Callable[[Node], Actor]",
        ephemeral: bool = False,
        first: socket.socket | None = None,
    ) -> None:
        self.system, self.socket, self.ephemeral = system, path, ephemeral
        self.name = node_name()
        self.cluster = Cluster()
        self.born = time.monotonic()
        self.gpus = Gpus(devices())
        self.folder: RunFolder
        self.log_store: LogStore
        self.recent: Recent
        self.graphs: dict[str, GraphRunner] = {}
        self.files: dict[str, AttachedGraph] = {}
        self.sessions: set[Session] = set()
        self.failed: dict[str, Kept] = {}  # handed over before this start, and could not start again
        self.kept_trouble = ""  # why the file of handed-over graphs cannot be used
        self.graphs_changed: Callable[[], None] = lambda: None  # a graph has come or gone
        self.reload: Callable[[float], Awaitable[None]] | None = None  # reads the daemon's own file again
        self.registry = MemoryRegistry(system.random)
        self.stopped = asyncio.Event()
        self.grace = IN_SERVICE
        """Seconds that open answers of graphs that are in no terminal get to finish when they are stopped."""
        self.code = 0  # with which the daemon exits
        self._control, self._first = control, first
        self.last_grace: float | None = None  # in place of those of all graphs, at the end
        self.lock = NodeLock(path)
        self._etcd: EtcdBridge | None = None
        self._lease = self.registry.grant()  # of what the node itself puts
        self._handlers: list[logging.Handler] = []
        self._readers: dict[str, LineReader] = {}
        self._waiters: list[Callable[[], None]] = []
        self._namesakes: set[str] = set()  # other machines of our name
        self._snapshot: Snapshot | None = None
        self._copying: asyncio.Future[None] | None = None
        self._pinned = asyncio.Event()  # the snapshot is taken, or there is none

    async def started(self) -> None:
        """Take the lock of the node and begin to listen. Raises NodeHeld, UserError."""
        if not self.lock.take():
            raise NodeHeld(
                f"the node is held by process {self.lock.holder()} ({self.socket})",
                "stop it, or choose another socket with --socket",
            )
        try:
            self.folder = RunFolder(self.socket)
            self.log_store = LogStore(logs_folder(self.folder.path))
        except OSError as error:
            raise UserError(f"the run folder cannot be used: {error}", "choose another --socket") from None
        self.context.task(self._pin(), "snapshot")
        self.recent = Recent(self.log_store)
        self._handlers = [self.recent, SessionLogs(self._to_sessions)]
        for handler in self._handlers:
            logging.getLogger().addHandler(handler)
        self.cluster = await asyncio.to_thread(cluster_of)
        if self.cluster.etcd is not None:
            library()  # without it nothing starts
        self._services = await self.system.supervisor("services")
        self.link = link = LinkServer(
            link_path(self.socket),
            self.registry,
            self.name,
            clocks=_clocks(),
            cluster=self.cluster.nats,
            lease=self._lease,
            changed=self.changed,
            greeted=self._greeted,
            closing=self.stopped.is_set,
        )
        await self._serve(Spec("link", lambda: link))
        if self._first is not None:
            first = await link.adopt(self._first, "", _clocks(), self._greeted)
            first.on_close(self._end_if_unused)  # also when it goes without a greeting
        if self.cluster.etcd is not None:
            await self._join_cluster()
        await self._serve(Spec("control", lambda: self._control(self)))
        self.system.watch(self._services.context.ref, self.part_ended)
        self.context.task(self._report(), "report")
        if self.ephemeral:
            self.context.task(self._first_client(), "first client")

    async def stopping(self, reason: Reason) -> None:
        """End all graphs, then let go of the node."""
        for session in self.sessions:
            session.end("the daemon of this machine was stopped")
        stops = [graph.stop(self.last_grace) for graph in self.graphs.values()] + [
            file.stop() for file in self.files.values()
        ]
        await asyncio.gather(*stops, return_exceptions=True)
        await self.system.root.stop_child("cluster")
        await self.system.root.stop_child("services")
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
        if hasattr(self, "log_store"):
            self.log_store.close()
            if self._snapshot is not None and self._copying is not None:
                self._snapshot.abandon()
                await asyncio.wait([self._copying])  # else it would make files after the folder was removed
                self._snapshot.give_back()
            self.folder.remove()
        self.lock.leave()  # last: who finds it free finds nothing of ours

    async def _pin(self) -> None:
        """Copy the installed package, and import from the copy from now on."""
        try:
            if (source := installed()) is not None:
                begun, snapshot = time.monotonic(), Snapshot(source, self.folder.path / "code")
                self._snapshot = snapshot
                self._copying = asyncio.get_running_loop().run_in_executor(None, snapshot.take)
                await asyncio.shield(self._copying)
                if snapshot.usable:
                    adopt(snapshot.folder)
                    log.debug("copied the installed package in %.0f ms", (time.monotonic() - begun) * 1000)
        except OSError as error:
            self._snapshot = None
            log.warning("no copy of the installed package: an upgrade needs a restart of this daemon (%s)", error)
        finally:
            self._pinned.set()

    async def pinned(self, python: str) -> Snapshot | None:
        """The snapshot that processes of this interpreter's environment run from; None: from the package as it is."""
        await self._pinned.wait()
        found = self._snapshot
        return found if found is not None and found.covers(python) and found.usable else None

    @handle
    async def ping(self, message: Ping) -> str | ActorError:
        """Answer the watchdog, when the link, the control socket and the bridge to etcd answer too."""
        parts = ["services/link", "services/control"] + ["cluster/etcd"] * (self.cluster.etcd is not None)
        try:
            for part in parts:
                await self.system.ref(f"/{part}").ask(message, timeout=PING)
        except ActorError as error:
            return error
        return "pong"

    def part_ended(self, notice: Terminated) -> None:
        """The node, its link or its control socket has failed for good: a new daemon is better than half of one."""
        if isinstance(notice.reason, Crashed):
            self._fail(str(notice.reason))

    def _fail(self, why: str) -> None:
        if not self.stopped.is_set():
            log.critical("the daemon cannot serve its node any more and ends: %s", why)
            self.code = 1
            self.stop()

    # Graphs.

    def names(self) -> set[str]:
        """Names of all graphs of the node."""
        return {*self.graphs, *self.files}

    def rows(self) -> list[Row]:
        """One row per component and replica, with what the node knows without the registry."""
        graphs: list[GraphRunner | AttachedGraph] = [*self.graphs.values(), *self.files.values()]
        rows = [row for graph in graphs for row in graph.rows()]
        for name, kept in self.failed.items():
            rows += [down(name, spec.name, kept.why) for spec in kept.graph.start_order()]
        return rows

    def shown_rows(self) -> list[Row]:
        """The same rows, each with the models that can be asked."""
        served = ServedModels(self)
        return [served.row(row) for row in self.rows()]

    async def start_graph(
        self,
        name: str,
        graph: Graph,
        *,
        origin: Origin = Origin(),
        session: str = "",
        kept: bool = False,
        grace: float | None = None,
    ) -> GraphRunner:
        """Start a graph. Raises UserError when the name cannot be or is taken, or it cannot start."""
        check_name(name)
        if name in self.names():
            who = self.graphs[name].session if name in self.graphs else self.files[name].session
            raise UserError(
                f"a graph '{name}' runs already{f' ({who})' if who else ''}",
                f"stop it first: dynamo stop {name}, or use --name",
            )
        runner = GraphRunner(self, name, graph, origin=origin, session=session, kept=kept, grace=grace)
        self.graphs[name] = runner
        try:
            await runner.start()
        except BaseException:
            del self.graphs[name]
            raise
        if kept:
            self.failed.pop(name, None)
        log.info("graph %s started (%s)", name, graph.target or graph.root, extra={"graph": name})
        self.graphs_changed()
        return runner

    async def stop_graph(self, name: str, grace: float | None = None) -> None:
        """End a graph for good. `grace`: seconds that open answers get to finish, in place of the graph's own."""
        graph = self.graphs.get(name) or self.files[name]
        await graph.stop(grace)
        if self.graphs.get(name) is graph:
            del self.graphs[name]
            self.graphs_changed()
        self.changed()
        self._end_if_unused()

    def listen(self, service: ServiceSpec, hosts: Sequence[str], port: int) -> Sockets:
        """Listening sockets for a service. Raises UserError, which names the owner of a port that is in use."""
        return listen(hosts, port, service.name, self._port_owner)

    def _port_owner(self, port: int) -> str:
        for name, graph in self.graphs.items():
            if any(url.endswith(f":{port}") for url in graph.urls()):
                return f"graph '{name}' of this daemon"
        return port_owner(port)

    def forget_graph(self, name: str) -> None:
        """Try no more to start a graph that was handed over and could not start again."""
        del self.failed[name]
        self.graphs_changed()
        self.changed()

    async def follow_session(self, session: Session, timeout: float) -> bool:
        """The graph of a session becomes what its command's files describe now; False without files.

        Raises UserError.
        """
        runner = session.runner
        new = await session.reread() if runner is not None else None
        if runner is None or new is None:
            return False
        await follow(self, {runner.name: runner}, {runner.name: new}, timeout)
        return True

    async def reload_all(self, timeout: float) -> None:
        """Read the daemon's own file and those of all commands again. Raises UserError, also when there are none."""
        if self.reload is not None:
            await self.reload(timeout)
        followed = [await self.follow_session(session, timeout) for session in list(self.sessions)]
        if self.reload is None and not any(followed):
            raise UserError("nothing that runs here has a file to read again", "dynamo reload -f new.yaml")

    def stop(self, grace: float | None = None) -> None:
        """End this process in good order. `grace`: as for `stop_graph`, of all graphs."""
        self.last_grace = grace
        self.stopped.set()

    # Who is connected.

    def _greeted(self, connection: Connection) -> None:
        assert connection.hello is not None
        connection.output = lambda line: self.output(connection.name, line.stream, line.line)
        if connection.hello.kind == "session":
            self.sessions.add(Session(self, connection))
        elif connection.hello.kind == "file":
            graph = AttachedGraph(connection, self.names())
            self.files[graph.name] = graph
            connection.on_close(lambda: self._file_closed(graph.name))

    def _file_closed(self, name: str) -> None:
        self.files.pop(name, None)
        self._end_if_unused()

    def session_closed(self, session: Session) -> None:
        """A command has ended, or lost its connection."""
        if self.stopped.is_set():
            return  # all graphs end, with the node
        self.context.task(self._session_closed(session), "end of a session")

    async def _session_closed(self, session: Session) -> None:
        await session.closed()
        self.sessions.discard(session)
        self._end_if_unused()

    async def _first_client(self) -> None:
        await asyncio.sleep(FIRST_CLIENT)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self.ephemeral and not (self.sessions or self.files or self.graphs):
            self.stop()

    # What others see.

    def cluster_facts(self) -> dict[str, Any] | None:
        """How this node is joined to others; None when it is alone."""
        if self.cluster.etcd is None and not self.cluster.nats:
            return None
        etcd = self._etcd.inspection() if self._etcd is not None else {}
        return {
            "etcd": etcd.get("endpoint", ""),
            "connected": bool(etcd.get("connected")),
            "error": str(etcd.get("last_error", "")) if not etcd.get("connected") else "",
            "nats": self.cluster.nats.get("NATS_SERVER", "").rpartition("@")[2],
            "foreign_keys": self.registry.statistics().foreign,
            "namesakes": len(self._namesakes),
        }

    def changed(self) -> None:
        """Something that `ps` shows may have changed: wake whoever waits."""
        for waiter in list(self._waiters):
            waiter()
        for session in self.sessions:
            session.report()

    async def _report(self) -> None:
        """Tell sessions what nobody has said: a supervisor that gives a process up says so to nobody.

        What others have removed meanwhile is made again, so that processes can start and be found.
        """
        while True:
            await asyncio.sleep(REPORT)
            with contextlib.suppress(OSError, UserError):
                self.folder.restore()
                self.lock.restore()
                if self._snapshot is not None and self._pinned.is_set() and not self._snapshot.usable:
                    self._copying = asyncio.get_running_loop().run_in_executor(None, self._snapshot.restore)
                    await asyncio.shield(self._copying)
            if not self.lock.held and (other := self.lock.holder()):
                self._fail(f"process {other} holds the node now")
            for session in self.sessions:
                session.report()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, looking at it whenever something has changed."""
        changed = asyncio.Event()
        self._waiters.append(changed.set)
        try:
            while not condition():
                changed.clear()
                await comes(changed, 1.0)
        finally:
            self._waiters.remove(changed.set)

    def inspection(self) -> dict[str, Any]:
        """Graphs and sessions."""
        return {
            "socket": str(self.socket),
            "graphs": sorted(self.names()),
            "sessions": sorted(session.name for session in self.sessions),
        }

    # Parts.

    async def _serve(self, spec: Spec) -> None:
        await self.system.ready(self._services.start_child(spec), timeout=5)

    async def _join_cluster(self) -> None:
        """Tell other nodes what is here, and hear what is there."""
        etcd = self.cluster.etcd
        assert etcd is not None
        where = "found at the usual ports of this machine" if self.cluster.found else "as named"
        endpoints = ", ".join(map(str, etcd.endpoints))
        log.info("this node is %s in the cluster of etcd at %s (%s)", self.name, endpoints, where)
        self._namesakes = watch_namesakes(self.registry, self.name, self._lease)

        def bridge() -> EtcdBridge:
            self._etcd = EtcdBridge(self.registry, etcd)
            return self._etcd

        supervisor = await self.system.supervisor("cluster", ALWAYS)
        supervisor.start_child(Spec("etcd", bridge, backoff=Backoff()))

    def output(self, process: str, stream: str, line: bytes) -> None:
        """A line of a component process, `stream` "out" or "err": for its log, and the session of its graph."""
        reader = self._readers.get(process)
        if reader is None:
            reader = self._readers[process] = LineReader(process)
        reader.feed("out" if stream == "out" else "err", line)
        graph = process.partition("/")[0]
        for session in self.sessions:
            if session.runner is not None and session.runner.name == graph:
                session.output(process, stream, line)

    def _to_sessions(self, graph: str, line: str) -> None:
        for session in self.sessions:
            if not graph or (session.runner is not None and session.runner.name == graph):
                session.output("dynamod", "err", line.encode())


def _clocks() -> Clocks:
    """How long processes that came by themselves may be without a heartbeat: as the environment says, if it can."""
    try:
        return clocks_of(())
    except UserError as error:
        log.error("%s; processes may be without a heartbeat for %g s", error.line(), Clocks().heartbeat)
        return Clocks()
