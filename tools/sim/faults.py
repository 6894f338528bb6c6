"""Which faults happen when: drawn from the seed before anything runs, then carried out."""

import asyncio
import random as random_module
import signal
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dynamod.engine.mocker.arguments import KvTransfer
from dynamod.features.prefill.handoff import LEASE

from .cluster import Cluster
from .places import Node, Place
from .scaling import ScalingFaults
from .shape import MIGRATIONS, POISON, SCALING, Event, Fault, Poison, Shape
from .values import FOREIGN
from .wire import Trouble

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

SLOWEST = 300.0
"""Times that a step of a slow worker may take as long as usual, as long as it is below `model.LONGEST_STEP_S`."""

GENTLE: tuple[Fault, ...] = (
    *("crash", "hang", "link", "drain", "double", "slow"),
    *("registry-outage", "registry-loss", "registry-values", "leave", "poison", "transfer"),
)
"""Faults under which no request may fail, as long as no more of them hit workers than a request may move."""

HITS: tuple[Fault, ...] = ("crash", "hang", "link", "drain")
TOLD: tuple[Fault, ...] = ("crash", "hang", "link", "drain", "double", "slow", "scale", "registry-values")
"""Faults under which the registry goes on to tell everybody everything."""

REQUESTS: tuple[Fault, ...] = (
    *("leave", "poison", "transfer", "role-switch", "on-demand", *SCALING),
    *("staying", "repeat", "slow-worker"),
)
"""Not events, but a matter of the workload, or of the cluster; or drawn elsewhere."""
WIRE: tuple[Fault, ...] = ("drop", "double", "delay", "corrupt", "reorder")


@dataclass(frozen=True, slots=True)
class Plan:
    """All faults of a run. `gentle`: no request may fail. `workers`: how many there are at first. `poison`: requests
    that crash or stop their workers, which fail of course. `prefill`: workers that compute prompts of more than
    `longest_local` tokens for the others; `broken`: the chance of a transfer between them to be broken,
    `kv_transfer`: who moves the blocks, the workers or their engines. `peers`: blocks are read from other workers that
    have them. `lease`: seconds for which prompts wait for their readers, where these may be held up for longer. `odd`:
    the worker whose blocks have another layout. `exact`: an answer continues at another worker; else it stays where it
    is. `repeats`: the chance of a part of an answer between nodes to be sent twice.
    """

    events: tuple[Event, ...]
    gentle: bool
    workers: int
    poison: tuple[Poison, ...] = ()
    prefill: int = 0
    longest_local: int = 0
    broken: float = 0.0
    kv_transfer: KvTransfer = "worker"
    peers: bool = False
    lease: float = LEASE
    odd: str = ""
    exact: bool = True
    repeats: float = 0.0

    @property
    def strikes(self) -> int:
        """Workers that a poison request may crash or stop: two, where ingresses always learn how a worker has ended.

        Another poison request, or a fault, that is taken for its doing may hide it once.
        """
        if any(event.fault not in TOLD for event in self.events):
            return (MIGRATIONS + 1) * (2 if self.prefill else 1)
        hidden = len(self.poison) + sum(event.fault in HITS for event in self.events)
        return 1 + hidden


def draw(random: random_module.Random, shape: Shape) -> Plan:
    """The faults of a run: none in some, up to a dozen in others; a third of the runs is gentle."""
    gentle = random.random() < 1 / 3 and shape.workers > MIGRATIONS
    poison: list[Poison] = []
    if "poison" in shape.faults and random.random() < 0.4:
        poison = random.choices(list(POISON), k=1 if gentle else random.choice((1, 1, 2)))
    kinds = [fault for fault in shape.faults if fault not in REQUESTS and (not gentle or fault in GENTLE)]
    if gentle and poison:
        # else it is taken for others' doing, and goes on, and those who are tried before it wait too long
        kinds = [fault for fault in kinds if fault in TOLD and fault not in HITS]
    count = random.choice((0, 1, 2, 3, 5, 8, 12)) if kinds else 0
    few = random.choice((shape.workers, shape.workers, shape.workers // 2, 2))
    events: list[Event] = []
    hits = 2 * len(poison)
    for _ in range(count):
        fault = random.choice(kinds)
        at, lasts = random.uniform(0.2, shape.span), random.choice((0.3, 1.0, 3.0, 6.0)) * random.uniform(0.5, 1.5)
        event = Event(at, fault, lasts, random.random(), random.random(), random.choice((0.02, 0.1, 0.3)))
        if fault in HITS:
            hits += 1
            if gentle and hits > MIGRATIONS:
                continue
        events.append(event)
    events.sort(key=lambda event: event.at)
    workers = shape.workers if gentle else max(1, min(few, shape.workers))
    prefill, longest_local, broken, peers = 0, 0, 0.0, False
    if "transfer" in shape.faults:
        prefill, longest_local = random.choice((0, 0, 1, 2)), random.choice((0, 40, 80))
        broken = random.choice((0.0, 0.1, 0.5))
        prefill = 0 if gentle and poison else prefill  # a prefill worker that hangs too leaves more to be tried alone
        peers = random.random() < 0.5
    kv_transfer: KvTransfer = random.choice(("worker", "worker", "pull", "rendezvous")) if prefill else "worker"
    if gentle and kv_transfer == "rendezvous":  # what does not come is a migration, and these have a limit
        kv_transfer = "pull"
    lease, odd = LEASE, ""
    if "transfer" in shape.faults:
        lease = random.choice((LEASE, 0.5, 2.0))
        odd = random.choice(("", "", "", "", "w0", "p0" if prefill else "w1"))
    return Plan(
        tuple(events), gentle, workers, tuple(poison), prefill, longest_local, broken, kv_transfer, peers, lease, odd
    )


def with_more(plan: Plan, shape: Shape, seed: int) -> Plan:
    """A plan with the faults that draw their own numbers, so that older seeds stay what they were."""
    random = random_module.Random(f"more {seed}")
    chances = random.random(), random.random(), random.random()
    if "repeat" in shape.faults and chances[0] < 0.1:
        plan = replace(plan, repeats=random.choice((0.02, 0.1, 0.3)))
    if "slow-worker" in shape.faults and chances[1] < 0.15 and not plan.gentle:
        slow = [
            Event(random.uniform(0.0, shape.span), "slow-worker", random.uniform(0.5, 6.0), *_numbers(random))
            for _ in range(random.choice((1, 2, 4)))
        ]
        plan = replace(plan, events=tuple(sorted((*plan.events, *slow), key=lambda event: event.at)))
    if {"staying", "poison"} <= {*shape.faults} and chances[2] < 0.15:
        # No worker is hit by anything else, so that the cost of each poison request is known.
        events = tuple(event for event in plan.events if event.fault in TOLD and event.fault not in (*HITS, "scale"))
        poison = tuple(random.choices(list(POISON), k=random.choice((1, 1, 2))))
        workers = random.choice((2, 3, 4, 6))
        plan = Plan(events, False, workers, poison, exact=False, repeats=plan.repeats)
    return plan


def _numbers(random: random_module.Random) -> tuple[float, float, float]:
    return random.random(), random.random(), random.random()


class Faults:
    """Carries out a plan. Every fault ends; `heal` ends those that go on."""

    def __init__(self, cluster: Cluster, plan: Plan, scaling: ScalingFaults | None = None) -> None:
        self._cluster, self.plan, self._scaling = cluster, plan, scaling
        self._ends: list[tuple[float, int, Callable[[], object]]] = []
        self._scaled = 0
        self.hit: set[str] = set()

    async def run(self) -> None:
        """All faults at their times."""
        begun = self._cluster.system.now()
        for event in self.plan.events:
            await asyncio.sleep(max(0.0, begun + event.at - self._cluster.system.now()))
            await self._happen(event)

    @property
    def calm(self) -> bool:
        """Whether none goes on."""
        return not self._ends

    async def heal(self) -> None:
        """End what still goes on: the way is clear, and every machine runs."""
        cluster = self._cluster
        cluster.log("heal", "all faults end")
        ends, self._ends = self._ends, []
        for _, _, end in ends:
            end()
        for node in cluster.nodes:
            if not node.alive:
                await cluster.boot_node(node)

    def _until(self, lasts: float, end: Callable[[], object]) -> None:
        """End a fault after a while, or when all is healed, whichever is first."""
        entry = (lasts, len(self._ends), end)
        self._ends.append(entry)

        def due() -> None:
            if entry in self._ends:
                self._ends.remove(entry)
                end()

        self._cluster.system_later(lasts, due)

    async def _happen(self, event: Event) -> None:
        cluster, fault = self._cluster, event.fault
        worker, ingress = self._worker(event), _pick(cluster.running(ingress=True), event.which)
        node = cluster.nodes[int(event.which * len(cluster.nodes))]
        cluster.log("fault", f"{fault} for {event.lasts:.3f} s")
        match fault:
            case "crash":
                if worker is not None:
                    self.hit.add(worker.name)
                    cluster.kill(worker, _pick([-signal.SIGKILL, -signal.SIGSEGV, 1], event.other) or 1)
            case "link":
                if worker is not None and worker.link is not None:
                    self.hit.add(worker.name)
                    cluster.cut_link(worker)
            case "hang":
                if worker is not None and worker.process is not None and not worker.process.frozen:
                    self.hit.add(worker.name)
                    process = worker.process
                    cluster.log("process", f"{process.name} stops")
                    cluster.freeze(process)
                    self._until(event.lasts, lambda: cluster.thaw(process))
            case "drain":
                if worker is not None and len(cluster.running(ingress=False)) > 1:
                    self.hit.add(worker.name)
                    self._drain(worker, event.lasts)
            case "scale":
                self._scale(event, node, worker)
            case "ingress-restart":
                if ingress is not None:
                    cluster.kill(ingress)
            case "slow":
                if ingress is not None and ingress.process is not None:
                    name = ingress.process.name
                    cluster.wire.slow[name] = 0.02 if self.plan.gentle else 0.02 + event.other * 0.2
                    self._until(event.lasts, lambda: cluster.wire.slow.pop(name, None))
            case "slow-worker":
                engine = worker.worker.engine if worker is not None and worker.worker is not None else None
                if worker is not None and engine is not None:
                    engine.slowness = SLOWEST**event.other
                    cluster.log("process", f"steps of {worker.name} take {engine.slowness:.3g} times as long")
                    self._until(event.lasts, engine.recover)
            case "node-death":
                cluster.log("node", f"n{node.number} dies")
                cluster.kill_node(node)
                self._until(event.lasts, lambda: self._task(cluster.boot_node(node), "boot"))
            case "daemon-death":
                cluster.log("node", f"the daemon of n{node.number} dies")
                cluster.kill_node(node)
                self._until(event.lasts, lambda: self._task(cluster.boot_node(node), "boot"))
            case "daemon-end":
                cluster.log("node", f"the daemon of n{node.number} ends, because one of its parts has")
                self._task(cluster.end_daemon(node), "end")
                self._until(event.lasts + 3.0, lambda: self._task(cluster.boot_node(node), "boot"))
            case "node-hang":
                if node.alive and not node.frozen:
                    cluster.log("node", f"n{node.number} stops")
                    cluster.freeze_node(node)
                    self._until(event.lasts, lambda: cluster.thaw_node(node))
            case "registry-loss":
                cluster.etcd.wipe()
            case "registry-values":
                first, count = int(event.which * len(FOREIGN)), 1 + int(event.other * len(FOREIGN))
                self._until(event.lasts, cluster.etcd.meddle((*FOREIGN[first:], *FOREIGN[:first])[:count]))
            case "registry-outage":
                if cluster.etcd.up:
                    cluster.etcd.away()
                    self._until(event.lasts, cluster.etcd.back)
            case "planner" | "start-fail" | "by-hand" | "stuck-drain":
                if self._scaling is not None:
                    self._scaling.happen(event, node, self._until)
            case _:
                self._cut(event, node)

    def _cut(self, event: Event, node: Node) -> None:
        """Faults of the ways between machines."""
        cluster, fault = self._cluster, event.fault
        other = cluster.nodes[int(event.other * len(cluster.nodes))].number
        if fault in WIRE:
            everywhere = event.other < 0.5
            trouble = Trouble(fault, event.chance, None if everywhere else node.number, None, 0.05 + event.other)
            cluster.wire.troubles.append(trouble)
            self._until(event.lasts, lambda: cluster.wire.troubles.remove(trouble))
        elif fault == "mail-outage":
            cluster.mail_down += 1
            self._until(event.lasts, self._mail_back)
        elif fault == "partition":
            pair = (min(node.number, other), max(node.number, other))
            if pair[0] != pair[1]:
                self._block(cluster.cuts, pair, event.lasts)
        elif fault == "mail-cut":
            self._block(cluster.mail_cuts, node.number, event.lasts)
        else:
            self._block(cluster.registry_cuts, node.number, event.lasts)
        cluster.changed()

    def _block(self, table: dict[K, int], key: K, lasts: float) -> None:
        table[key] = table.get(key, 0) + 1

        def end() -> None:
            table[key] -= 1
            self._cluster.changed()

        self._until(lasts, end)

    def _mail_back(self) -> None:
        self._cluster.mail_down -= 1
        self._cluster.changed()

    def _worker(self, event: Event) -> Place | None:
        """A worker that lives; in gentle runs one that has not been hit."""
        there = self._cluster.running(ingress=False)
        if self.plan.gentle:
            there = [place for place in there if place.name not in self.hit]
        return _pick(there, event.which)

    def _task(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._cluster.system.root.context.task(work, name)

    def _drain(self, place: Place, lasts: float) -> None:
        cluster = self._cluster
        cluster.log("scale", f"{place.name} drains")
        self._task(cluster.drain(place, 10.0), f"drain {place.name}")
        self._until(lasts + 10.5, lambda: cluster.start(place))

    def _scale(self, event: Event, node: Node, worker: Place | None) -> None:
        cluster = self._cluster
        if event.other < 0.5:
            if node.alive:
                self._scaled += 1
                cluster.log("scale", f"x{self._scaled} comes")
                cluster.add(f"x{self._scaled}", node)
        elif worker is not None and len(cluster.running(ingress=False)) > 2:
            cluster.log("scale", f"{worker.name} goes")
            self._task(cluster.drain(worker, 5.0), f"drain {worker.name}")


def _pick(places: Sequence[T], which: float) -> T | None:
    return places[int(which * len(places))] if places else None
