"""The simulated cluster: nodes with a real supervisor each, processes below them, and what can be done to all of it."""

import asyncio
import random as random_module
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from dynamod.actor import Actor, Backoff, Policy, Reason, Supervisor, System
from dynamod.daemon.exits import described
from dynamod.engine.base import EngineOptions
from dynamod.features.prefill.handoff import LEASE
from dynamod.ingress.processor import ProcessorBackend
from dynamod.message.discovery import PREFILL, DisaggregationMode, Instance
from dynamod.message.node import State
from dynamod.message.worker import Request
from dynamod.router.router import RouterSettings
from dynamod.runtime.lifeline import ORPHAN_GRACE

from .daemon import Daemon, Link
from .etcd import Etcd, SimulatedRegistry
from .events import Log
from .model import odd_layout
from .places import Kind, Node, Place
from .process import EndpointDispatcher, SimulatedProcessor, SimulatedWorker
from .shape import Poison, Shape
from .transfer import Transfers
from .wire import Process, SimulatedTransport, Wire, WorkerServer

POLICY = Policy(intensity=5, period=60.0, escalate=False)
"""As the daemon's."""

FLUSH = 0.01
"""Seconds between the end of an actor and that of its process: what was written last still leaves."""

LEAVE = 0.01
"""Seconds until a process ends that has lost its daemon."""


Sent = Callable[[Place, Instance, Request], None]


class Cluster:
    """Builds nodes and processes, and knows which ways are cut. `sent` gets each request that leaves an ingress.

    `broken`: chance of a transfer between workers to be broken; `lease`: seconds for which prompts wait there. `odd`:
    the name of a worker whose blocks have another layout.
    """

    def __init__(
        self,
        system: System,
        log: Log,
        random: random_module.Random,
        options: EngineOptions,
        routing: RouterSettings,
        broken: float = 0.0,
        lease: float = LEASE,
        odd: str = "",
    ) -> None:
        self.system, self.log, self.options, self.routing, self._odd = system, log, options, routing, odd
        self.wire = Wire(log, random_module.Random(random.getrandbits(64)), self.reachable, self.separated)
        self.etcd = Etcd(log, random_module.Random(random.getrandbits(64)), self._hears)
        own = random_module.Random(random.getrandbits(64))
        self.transfers = Transfers(log, own, self.direct, broken, lease)
        self.config = SimpleNamespace(kv_peer_fetch=False)  # of processors: the keys of features
        self.nodes: list[Node] = []
        self.places: dict[str, Place] = {}
        self._ways: dict[Process, tuple[SimulatedRegistry, Link]] = {}  # of live processes
        self.cuts: dict[tuple[int, int], int] = {}  # pairs of nodes that do not reach each other, counted
        self.mail_cuts: dict[int, int] = {}  # nodes that the broker does not reach
        self.registry_cuts: dict[int, int] = {}
        self.mail_down = 0
        self.sent: Sent = lambda _place, _instance, _request: None
        self.gone: Callable[[Process, bool], None] = lambda _process, _node_died: None
        self.quarantined: Callable[[Process], None] = lambda _process: None
        self.struck: Callable[[str], None] = lambda _request: None
        self.booted: Callable[[Node], None] = lambda _node: None  # its daemon runs, and nothing else yet
        self.starting: Callable[[Place], Awaitable[None]] = _at_once  # of pooled workers
        self.draining: Callable[[Place], Awaitable[None]] = _at_once
        self.ending: Callable[[Place, Reason], None] = lambda _place, _reason: None
        self.makers: dict[Kind, Callable[[Place], Actor]] = {"worker": self.worker, "ingress": self._ingress}
        self.decisions = 1000
        # By rendezvous engines are told their part when they start, and those that answer compute no prompts.
        self.mode: DisaggregationMode = "decode" if options.arguments["kv_transfer"] == "rendezvous" else "aggregated"
        self.exact = True  # answers continue at other workers
        self._pids = 0

    # Ways.

    def reachable(self, a: int, b: int) -> bool:
        """Whether messages pass between two nodes."""
        if not (self.nodes[a].alive and self.nodes[b].alive):
            return False
        if a == b:
            return True
        if self.mail_down or self.mail_cuts.get(a) or self.mail_cuts.get(b):
            return False
        return not self.cuts.get((min(a, b), max(a, b)))

    def direct(self, a: int, b: int) -> bool:
        """Whether two nodes reach each other without a broker."""
        one, other = self.nodes[a], self.nodes[b]
        cut = self.cuts.get((min(a, b), max(a, b)))
        return one.alive and other.alive and not (one.frozen or other.frozen or cut)

    def separated(self, a: int, b: int) -> bool:
        """Whether one of two nodes gets nothing from the other."""
        return not self.reachable(a, b) or (a != b and (self.nodes[a].frozen or self.nodes[b].frozen))

    def _hears(self, node: int) -> bool:
        if node >= len(self.nodes):
            return True  # its daemon is about to start
        one = self.nodes[node]
        return one.alive and not one.frozen and not self.registry_cuts.get(node)

    def changed(self) -> None:
        """Ways have changed."""
        self.wire.changed()
        self.etcd.changed()

    # Building.

    def process(self, name: str, node: int) -> Process:
        """A new process."""
        self._pids += 1
        return Process(name, node, self._pids)

    async def add_node(self) -> Node:
        """One more node, without anything on it."""
        number = len(self.nodes)
        daemon = self.process(f"n{number}.daemon", number)
        node = Node(number, daemon, SimulatedRegistry(self.etcd, daemon))
        self.nodes.append(node)
        await self._boot(node)
        return node

    async def build(self, shape: Shape, workers: int, pause: float, prefill: int = 0) -> None:
        """The nodes, and so many workers in turn on them; after a pause they have come up.

        `prefill`: workers that compute prompts for the others, in addition.
        """
        for _ in range(shape.nodes):
            await self.add_node()
        for number in range(workers):
            self.add(f"w{number}", self.nodes[number % shape.nodes])
        for number in range(prefill):
            self.add(f"p{number}", self.nodes[number % shape.nodes], prefill=True)
        await asyncio.sleep(pause)

    async def open(self, shape: Shape) -> None:
        """The ingresses, in turn on the nodes. Raises TimeoutError when they do not get ready."""
        for number in range(shape.ingresses):
            self.add(f"i{number}", self.nodes[number % shape.nodes], "ingress")
        async with asyncio.timeout(60):
            while not all(place.backend for place in self.running(ingress=True)):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)

    async def _boot(self, node: Node) -> None:
        node.supervisor = self.system.start(f"n{node.number}", lambda: Supervisor(policy=POLICY), restart="temporary")
        await self.system.ready(node.supervisor, timeout=5)
        link = node.link = Daemon(node.daemon, node.registry, self._unresponsive)
        ref = self.system.start("link", lambda: link, under=self.supervisor(node))
        await self.system.ready(ref, timeout=5)
        self.booted(node)

    def supervisor(self, node: Node) -> Supervisor | None:
        """The node's supervisor, while it runs."""
        return self.system.supervisor_of(node.supervisor) if node.supervisor is not None else None

    def add(self, name: str, node: Node, kind: Kind = "worker", *, prefill: bool = False) -> Place:
        """A process on a node, started at once."""
        place = self.settle(Place(name, node.number, kind, prefill=prefill))
        self.start(place)
        return place

    def settle(self, place: Place) -> Place:
        """A place of its name, without anything there yet."""
        self.places[place.name] = self.nodes[place.node].places[place.name] = place
        return place

    def start(self, place: Place) -> None:
        """Start (again) what belongs at a place."""
        place.wanted = True
        supervisor = self.supervisor(self.nodes[place.node])
        if supervisor is None or place.draining or any(one.name == place.name for one in supervisor.children()):
            return
        make = self.makers[place.kind]
        self.system.start(place.name, lambda: make(place), under=supervisor, backoff=Backoff(initial=0.2))

    def worker(self, place: Place) -> SimulatedWorker:
        """A new worker, to be started below the node's supervisor."""
        process = self.new_process(place)
        assert place.registry is not None
        registry = place.registry
        exchange = EndpointDispatcher(self.system, f"/n{place.node}/{place.name}", lambda: place.process is process)
        self.wire.servers[process.name] = WorkerServer(process, exchange.receive)
        worker = SimulatedWorker(
            process,
            registry,
            self._options(place),
            lambda state: self.reported(process, state),
            lambda kind, request: self._strike(place, kind, request),
            self.transfers,
            PREFILL if place.prefill else self.mode,
            place.component,
            self.exact,
        )
        assert place.link is not None
        place.link.working = worker.working
        if place.pooled and not place.model:
            assert place.link is not None
            place.link.asked = worker.asked
            place.link.spawn = lambda work, name: worker.context.task(work, name)  # which it has when it runs
            worker.told = partial(self._role, place, place.link)
        if place.pooled:
            worker.starting, worker.draining = partial(self.starting, place), partial(self.draining, place)
            worker.ending = partial(self.ending, place)
        worker.session_lease = self.transfers.lease
        place.worker = worker
        return worker

    def _options(self, place: Place) -> EngineOptions:
        given = replace(self.options, name=place.model) if place.model else self.options
        return odd_layout(given) if place.name == self._odd else given

    def _role(self, place: Place, link: Link, role: DisaggregationMode, text: str) -> None:
        """A worker says its role, or the next one and what happens until then."""
        if not text:
            place.prefill = role == PREFILL
        self.log("role", f"{place.name} {text or f'is {role}'}")
        link.channel.send(State(place.component, "", text, role))

    def _ingress(self, place: Place) -> SimulatedProcessor:
        process = self.new_process(place)
        assert place.registry is not None
        registry = place.registry
        transport = SimulatedTransport(
            self.wire, process, lambda instance, request: self.sent(place, instance, request)
        )
        place.backend = None

        def report(state: str) -> None:
            if state == "ready" and place.processor is processor:
                ref = self.system.ref(f"/n{place.node}/{place.name}")
                place.backend = ProcessorBackend(ref, processor, processor.view)
            self.reported(process, state)

        processor = SimulatedProcessor(process, registry, transport, self.routing, self.config, report, self.decisions)
        place.processor = processor
        return processor

    def new_process(self, place: Place) -> Process:
        """The next process at a place, with its registry and its link to the daemon."""
        process = place.process = self.process(f"{place.name}.{self._pids + 1}", place.node)
        place.registry = SimulatedRegistry(self.etcd, process)
        node = self.nodes[place.node]
        assert node.link is not None

        def end(why: str = "") -> None:
            if place.process is process:
                process.killed = why
                self.kill(place)

        lost = partial(self.system_later, LEAVE, end)
        place.link = Link(node.link, process, place.registry, lost, end)
        self._ways[process] = place.registry, place.link
        self.log("process", f"{process.name} starts on n{place.node}")
        return process

    def reported(self, process: Process, state: str) -> None:
        """A process says what has become of it."""
        self.log("process", f"{process.name} {state}")
        if state == "stopped" and process.alive:
            self.system_later(FLUSH, lambda: self.ended(process))

    def system_later(self, seconds: float, work: Callable[[], object]) -> None:
        """Do something later, whatever happens meanwhile."""
        self.etcd.loop.call_later(seconds, work)

    def ended(self, process: Process, *, node_died: bool = False) -> None:
        """A process is no more. Its daemon, if it lives, sees that their connection ends."""
        if not process.alive:
            return
        process.alive = False
        process.frozen = False
        registry, link = self._ways.pop(process)  # its place may have the next one already
        registry.exit()
        link.channel.close()
        self.wire.process_died(process, node_died)
        self.gone(process, node_died)

    # What can happen.

    def running(self, *, ingress: bool) -> list[Place]:
        """Places with a live process, in the order of their names."""
        return self.alive("ingress" if ingress else "worker")

    def alive(self, kind: Kind) -> list[Place]:
        """Places of a kind with a live process, in the order in which they came."""
        found = [place for place in self.places.values() if place.kind == kind]
        return [place for place in found if place.process is not None and place.process.alive]

    def kill(self, place: Place, code: int = -signal.SIGKILL, *, node_died: bool = False) -> None:
        """End a process at once, without any action of its own. `code`: its exit code, negative for a signal."""
        if place.process is None or place.registry is None or not place.process.alive:
            return
        self.log("process", f"{place.process.name} dies ({place.process.killed or described(code)})")
        place.backend = None
        place.process.code = code
        self.ended(place.process, node_died=node_died)
        cell = self.system.cell(self.system.ref(f"/n{place.node}/{place.name}"))
        if cell is not None and cell.task is not None:
            cell.task.cancel()

    def cut_link(self, place: Place) -> None:
        """The connection of a process and its daemon is lost: the process ends itself, even a stopped one."""
        if place.link is not None and place.process is not None and place.process.alive:
            process = place.process
            self.log("process", f"{process.name} loses its daemon")
            place.link.connection.channel.close()
            if place.registry is not None:
                place.registry.orphan = True
            self.system_later(ORPHAN_GRACE, lambda: self.kill(place) if place.process is process else None)

    def freeze(self, process: Process) -> None:
        """Stop a process (SIGSTOP); its daemon notices."""
        process.frozen, process.since = True, self.system.now()

    def _strike(self, place: Place, kind: Poison, request: str) -> None:
        process = place.process
        if process is not None and process.alive:
            self.struck(request)
            self.log("poison", f"{request} is at {process.name}: {kind}")
            if kind == "crash":
                self.kill(place, -signal.SIGSEGV)
            else:
                self.freeze(process)

    def thaw(self, process: Process) -> None:
        """Let it go on."""
        if process.frozen:
            process.since = self.system.now()
            process.thaw()

    def _unresponsive(self, lease: int) -> None:
        for place in self.places.values():
            if place.process is not None and place.registry is not None and place.registry.lease == lease:
                self.log("daemon", f"{place.process.name} is unresponsive")
                self.quarantined(place.process)

    def stopped(self, name: str) -> bool:
        """Whether the process of this name is stopped."""
        server = self.wire.servers.get(name)
        return server is not None and server.process.frozen

    def lease_of(self, process: Process) -> int:
        """The lease of a process; 0 before it has one."""
        return next((place.registry.lease for place in self._of(process) if place.registry is not None), 0)

    def _of(self, process: Process) -> list[Place]:
        return [place for place in self.places.values() if place.process is process]

    def _processes(self, node: Node) -> Iterator[Process]:
        yield from (place.process for place in node.places.values() if place.process is not None)

    def kill_node(self, node: Node) -> None:
        """A machine is gone, with all that ran there. So it is when its daemon dies, which takes its children along."""
        if not node.alive:
            return
        node.alive = node.frozen = False
        for place in node.places.values():
            self.kill(place, node_died=True)
        node.daemon.alive = False
        node.registry.exit()
        cell = self.system.cell(node.supervisor) if node.supervisor is not None else None
        if cell is not None and cell.task is not None:
            cell.task.cancel()
        self.changed()

    async def end_daemon(self, node: Node) -> None:
        """A part of the daemon has failed for good: it stops its processes in good order, and ends."""
        if not node.alive or node.ending or node.supervisor is None:
            return
        node.ending = True
        await self.system.root.stop_child(node.supervisor.path.rpartition("/")[2], timeout=2.0)
        await asyncio.sleep(FLUSH * 2)
        node.ending = False
        self.kill_node(node)

    async def boot_node(self, node: Node) -> None:
        """The machine is back, and starts what belongs there."""
        if node.alive:
            return
        if node.supervisor is not None:
            await self.system.ended(node.supervisor)
        node.alive = True
        node.daemon = self.process(f"n{node.number}.daemon", node.number)
        node.registry = SimulatedRegistry(self.etcd, node.daemon)
        await self._boot(node)
        for place in node.places.values():
            if place.wanted and not place.pooled:
                self.start(place)
        self.changed()

    def freeze_node(self, node: Node) -> None:
        """The whole machine stops, its daemon too."""
        node.frozen = node.daemon.frozen = True
        for process in self._processes(node):
            process.frozen, process.since = process.alive, self.system.now()
        self.changed()

    def thaw_node(self, node: Node) -> None:
        """It goes on."""
        node.frozen = False
        node.daemon.since = self.system.now()
        node.daemon.thaw()
        for process in list(self._processes(node)):
            self.thaw(process)
        self.changed()

    async def drain(self, place: Place, timeout: float) -> None:
        """Take a worker out of service: it finishes what it has."""
        place.wanted = False
        supervisor = self.supervisor(self.nodes[place.node])
        if supervisor is None or place.draining:
            return
        place.draining = True
        try:
            await supervisor.stop_child(place.name, drain=True, timeout=timeout)
        finally:
            place.draining = False
        if place.wanted:  # somebody wants it back meanwhile
            self.start(place)


async def _at_once(_place: Place) -> None:
    return
