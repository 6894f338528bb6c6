"""The node: everything one daemon (or foreground process) runs, and its place among others on the machine."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod import __version__
from dynamod.actor import Actor, Backoff, Ref, Spec, Supervisor, System, handle
from dynamod.control.commands import Commands, check_name
from dynamod.control.socket import ControlSocket
from dynamod.discovery.base import Watcher
from dynamod.discovery.etcd.bridge import EtcdBridge
from dynamod.discovery.etcd.client import library
from dynamod.discovery.etcd.settings import EtcdSettings
from dynamod.discovery.keys import quarantine_key
from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.memory import MemoryRegistry
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError
from dynamod.message.node import Answer, Ask, Claim, Claimed, FromNode, Hello, Report
from dynamod.observe.capture import LineReader
from dynamod.observe.logstore import LogStore

from .cluster import Cluster, cluster_of
from .gpus import Gpus, devices
from .link import LinkServer
from .lock import NodeLock
from .names import node_name, watch_namesakes
from .paths import RunFolder, link_path, logs_folder
from .recent import Recent
from .reload import HANDED_OVER, Kept
from .runner import GraphRunner

if TYPE_CHECKING:
    from .link import LinkEnd

log = logging.getLogger("dynamod.daemon")

SEEK = 0.1
"""Seconds between attempts to hold the node after its holder has gone."""


CLAIM = 2.0
"""Seconds that a guest waits for the holder's word on the name of its graph."""


class Ping:
    """Asked through the mailbox by the watchdog: a blocked loop or actor does not answer."""


class Node(Actor):
    """Graphs that run here, and the role: `holder` of the node's socket and registry, or `guest` of the holder."""

    def __init__(self, system: System, path: Path, *, title: str, must_hold: bool) -> None:
        self.system = system
        self.socket = path
        self.title = title
        self.must_hold = must_hold
        self.name = node_name()
        self.cluster = Cluster()
        self.role = "seeking"
        self.born = time.monotonic()
        self.gpus = Gpus(devices())
        self.folder = RunFolder(path)
        self.log_store = LogStore(logs_folder(self.folder.path))
        self.recent = Recent(self.log_store)
        self.graphs: dict[str, GraphRunner] = {}
        self.failed: dict[str, Kept] = {}  # handed over before this start, and could not start again
        self.graphs_changed: Callable[[], None] = lambda: None  # a graph has come or gone
        self.reload: Callable[[float], Awaitable[None]] | None = None  # reads the daemon's own file again
        self.registry = MemoryRegistry(system.random)
        self.commands = Commands(self)
        self.stopped = asyncio.Event()
        self.seated = asyncio.Event()  # the role is known
        self._seat = NodeLock(path)
        self._link: LinkServer | None = None
        self._guest: LinkRegistry | None = None
        self._guest_lost = asyncio.Event()
        self._unheard: set[int] = set()  # pids of our processes that are silent
        self._lease = self.registry.grant()  # of what the node itself puts while it holds the registry
        self._claims: dict[str, asyncio.Future[str]] = {}
        self._readers: dict[str, LineReader] = {}
        self._waiters: list[Callable[[], None]] = []
        self._watches: list[tuple[str, Watcher]] = []
        self._namesakes: set[str] = set()  # other machines of our name

    async def started(self) -> None:
        """Take the seat, or become a guest."""
        logging.getLogger().addHandler(self.recent)
        supervisor = Supervisor()
        ref = self.system.start("seat", lambda: supervisor, restart="temporary")
        await self.system.ready(ref, timeout=5)
        self._seat_supervisor = supervisor
        if self._seat.take():
            self.cluster = await asyncio.to_thread(cluster_of)
            if self.cluster.etcd is not None:
                library()  # without it nothing starts
            await self._hold()
        elif self.must_hold:
            raise UserError(
                f"the node is held by process {self._seat.holder()} ({self.socket})",
                "stop it, or choose another socket with --socket",
            )
        else:
            await self._join()

    async def stopping(self, reason: Any) -> None:
        """End all graphs, then leave the seat."""
        await asyncio.gather(*(runner.stop() for runner in list(self.graphs.values())))
        await self.system.root.stop_child("seat")
        self._seat.leave()
        logging.getLogger().removeHandler(self.recent)
        self.log_store.close()
        self.folder.remove()

    @handle
    async def ping(self, message: Ping) -> str:
        """Answer the watchdog."""
        return "pong"

    # Graphs.

    async def start_graph(self, name: str, graph: Graph, *, origin: Any = None) -> GraphRunner:
        """Start a graph. Raises UserError when the name cannot be or is taken, or it cannot start."""
        check_name(name)
        if name in (self._link.names() if self._link is not None else self.graphs):
            raise UserError(f"a graph '{name}' runs already", f"stop it first: dynamo stop {name}, or use --name")
        runner = GraphRunner(
            name,
            graph,
            self.system,
            folder=self.folder.path,
            link=link_path(self.socket),
            gpus=self.gpus,
            output=self._output,
            changed=self.changed,
            silent=self.silent,
            node=self.name,
        )
        runner.origin = origin
        self.graphs[name] = runner
        try:
            await runner.start()
        except BaseException:
            del self.graphs[name]
            raise
        if origin == HANDED_OVER:
            self.failed.pop(name, None)
        log.info("graph %s started (%s)", name, graph.target or graph.root)
        self.graphs_changed()
        return runner

    async def claim(self, name: str, *, exact: bool) -> str:
        """The name for a graph of ours among those of other terminals: `name`, or `name-2` and so on.

        Raises UserError when it must be `exact` and is taken. Without an answer it is `name`; `ps` shows pids too.
        """
        guest = self._guest
        if guest is None:
            return name
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._claims[name] = answer
        try:
            async with asyncio.timeout(CLAIM):
                await guest.leased(CLAIM)
                guest.say(Claim(name))
                given = await answer
        except TimeoutError:
            return name
        finally:
            del self._claims[name]
        if exact and given != name:
            raise UserError(f"a graph '{name}' runs already in another terminal", "choose another --name")
        return given

    async def stop_graph(self, name: str) -> None:
        """End a graph for good."""
        runner = self.graphs[name]
        await runner.stop()
        if self.graphs.get(name) is not runner:
            return  # somebody else has stopped it too
        del self.graphs[name]
        self.graphs_changed()
        self.changed()

    def forget_graph(self, name: str) -> None:
        """Try no more to start a graph that was handed over and could not start again."""
        del self.failed[name]
        self.graphs_changed()
        self.changed()

    def silent(self, pid: int, silent: bool) -> None:
        """A process of ours is not heard any more, or is again: ingress processes leave it alone meanwhile."""
        (self._unheard.add if silent else self._unheard.discard)(pid)
        self._tell_unheard(pid)

    def _tell_unheard(self, pid: int) -> None:
        key, unheard = quarantine_key(self.name, pid), pid in self._unheard
        if self._guest is not None:
            if unheard:
                self._guest.put(key, b"")
            else:
                self._guest.delete(key)
        elif self.role == "holder":
            if unheard:
                self.registry.put(key, b"", self._lease)
            else:
                self.registry.delete(key, self._lease)

    def stop(self) -> None:
        """End this process in good order."""
        self.stopped.set()

    def cluster_facts(self) -> dict[str, Any] | None:
        """How this node is joined to others; None when it is alone, or a guest."""
        cluster = self.cluster
        if self.role != "holder" or (cluster.etcd is None and not cluster.nats):
            return None
        cell = self._seat_supervisor.child("etcd")
        etcd = cell.actor.inspection() if cell is not None else {}
        return {
            "etcd": etcd.get("endpoint", ""),
            "connected": bool(etcd.get("connected")),
            "error": str(etcd.get("last_error", "")) if not etcd.get("connected") else "",
            "nats": cluster.nats.get("NATS_SERVER", "").rpartition("@")[2],
            "foreign_keys": self.registry.statistics().foreign,
            "namesakes": len(self._namesakes),
        }

    def guests(self) -> "list[LinkEnd]":
        """Processes that joined this node; empty unless we hold it."""
        return self._link.guests() if self._link is not None else []

    def leases(self) -> dict[int, int]:
        """Leases of the component processes on this node, guests' too, by pid; empty unless we hold it."""
        return self._link.leases() if self._link is not None else {}

    # News.

    def changed(self) -> None:
        """Something that `ps` shows may have changed: tell whoever waits, and the holder if we are a guest."""
        for waiter in list(self._waiters):
            waiter()
        if self._guest is not None:
            rows = tuple(msgspec.to_builtins(row) for runner in self.graphs.values() for row in runner.rows())
            self._guest.say(Report(rows))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, looking at it whenever something has changed."""
        news = asyncio.Event()
        self._waiters.append(news.set)
        try:
            while not condition():
                news.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await news.wait()
                except TimeoutError:
                    continue
        finally:
            self._waiters.remove(news.set)

    # The seat.

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Watch the node's registry, whoever holds it now or later (see registry.base)."""
        self._watches.append((prefix, watcher))
        if self._guest is not None:
            self._guest.watch(prefix, watcher)
        elif self.role == "holder":
            self.registry.watch(prefix, watcher)

    async def _hold(self) -> None:
        link = LinkServer(
            link_path(self.socket),
            self.registry,
            self.name,
            self.changed,
            lambda: self.graphs,
            self.cluster.nats,
            self._lease,
        )
        ref = self._seat_supervisor.start_child(Spec("link", lambda: link))
        await self.system.ready(ref, timeout=5)
        self._link, self.role = link, "holder"
        log.debug("this process holds the node at %s", self.socket)
        if (etcd := self.cluster.etcd) is not None:
            self._join_cluster(etcd)
        self._seat_supervisor.start_child(Spec("door", lambda: ControlSocket(self)))
        self.seated.set()
        for prefix, watcher in self._watches:
            self.registry.watch(prefix, watcher)
        for pid in self._unheard:
            self._tell_unheard(pid)
        self.changed()

    def _join_cluster(self, etcd: EtcdSettings) -> None:
        """Tell other nodes what is here, and hear what is there."""
        where = "found at the usual ports of this machine" if self.cluster.found else "as told"
        endpoints = ", ".join(map(str, etcd.endpoints))
        log.info("this node is %s in the cluster of etcd at %s (%s)", self.name, endpoints, where)
        self._namesakes = watch_namesakes(self.registry, self.name, self._lease)
        self._seat_supervisor.start_child(Spec("etcd", lambda: EtcdBridge(self.registry, etcd), backoff=Backoff()))

    async def _join(self) -> None:
        hello = Hello(self.title, os.getpid(), version=__version__, guest=True)
        guest = LinkRegistry(str(link_path(self.socket)), hello, self._asked, self._guest_lost.set)
        ref = self._seat_supervisor.start_child(Spec("guest", lambda: guest, restart="temporary"))
        await self.system.ready(ref, timeout=5)
        self._guest, self.role = guest, "guest"
        for prefix, watcher in self._watches:
            guest.watch(prefix, watcher)
        log.info("joined the daemon of this machine (process %s)", self._seat.holder())
        self.seated.set()
        self.context.task(self._succeed(ref), "succeed")

    async def _succeed(self, guest: Ref) -> None:
        """Watch for the end of the holder; take its seat, unless another guest is faster."""
        while not self._seat.take():
            assert self._guest is not None
            if self._guest.connected:
                self._guest_lost.clear()
                self.changed()
                await self._guest_lost.wait()
            else:
                await asyncio.sleep(SEEK)
        self._guest = None
        await self._seat_supervisor.stop_child("guest")
        try:
            self.cluster = await asyncio.to_thread(cluster_of)
        except UserError as error:
            log.error("this node stays alone: %s", error.line())
        log.info("the daemon of this machine has ended; this process takes its place")
        await self._hold()

    def _asked(self, message: FromNode) -> None:
        match message:
            case Ask():
                self.context.task(self._answer(message), f"answer {message.command}")
            case Claimed(asked, name):
                if (claim := self._claims.get(asked)) is not None and not claim.done():
                    claim.set_result(name)
            case _:
                pass

    async def _answer(self, ask: Ask) -> None:
        guest = self._guest
        if guest is None:
            return
        try:
            value = await self.commands.call(ask.command, ask.arguments, local=True)
        except UserError as error:
            guest.say(Answer(ask.ask, None, error.line()))
        except Exception as error:
            log.exception("%s failed", ask.command)
            guest.say(Answer(ask.ask, None, f"{type(error).__name__}: {error}"))
        else:
            guest.say(Answer(ask.ask, value))

    # What processes print.

    def _output(self, process: str, stream: str, line: bytes) -> None:
        reader = self._readers.get(process)
        if reader is None:
            reader = self._readers[process] = LineReader(process)
        reader.feed("out" if stream == "out" else "err", line)

    def inspection(self) -> dict[str, Any]:
        """Role and graphs."""
        return {"role": self.role, "socket": str(self.socket), "graphs": sorted(self.graphs)}
