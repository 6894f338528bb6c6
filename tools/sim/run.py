"""One simulation: a seed and a shape in, an outcome out."""

import asyncio
import random as random_module
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dynamod.actor import Actor, Reason, System
from dynamod.actor.testing import Deadlock, LeakedTasks, run
from dynamod.daemon.exits import EXIT, crash
from dynamod.ingress.subscriptions import MAX_SILENCE, RETRY
from dynamod.message.discovery import Instance
from dynamod.message.errors import PoisonRequest, RequestError
from dynamod.message.worker import Generate, Prefill, Request
from dynamod.migration.stages import CAUSE
from dynamod.router.policies import NAMES
from dynamod.router.router import RouterSettings

from . import checks, watch
from .clients import Client, PlannedRequest, workload
from .cluster import Cluster
from .events import KEPT, Log, LogCapture
from .faults import Faults, Plan, draw, with_more
from .model import options
from .ondemand import OnDemand, OnDemandPlan, draw_on_demand
from .orders import SETTLED
from .places import Place
from .planners import Planners
from .scaling import draw_scaling, with_planners
from .shape import CLOCKS, HEARTBEAT, LEASE_TTL, MIGRATIONS, Shape
from .wire import Process, Session

MODES = ("kv", *(name for name in NAMES if name != "direct"))
"""`kv` twice, because it has most to be wrong; `direct` is round robin for who asks for nobody."""

MOMENT = 1e-6
"""Seconds after which a request has passed from its placement to its instance."""

UNTOLD = HEARTBEAT + CAUSE + checks.PROMPT
"""Seconds until requests have left a dead worker when no daemon could tell of its death."""

LONGEST = (MIGRATIONS + 2) * ((CLOCKS.first or 0) + (CLOCKS.queue or 0)) + (CLOCKS.total or 0)
"""Seconds after which every request has ended, whatever has happened to it."""


@dataclass(slots=True)
class Outcome:
    """What came of a seed. `lines`: the last events; `digest`: of all of them. `ends`: how requests ended."""

    seed: int
    digest: str
    events: int
    lines: list[str]
    violations: list[tuple[str, str]]
    ends: dict[str, int]
    faults: dict[str, int]
    moves: int
    seconds: float  # virtual
    payloads: int
    harmed: int
    gentle: bool

    @property
    def known(self) -> list[str]:
        """Checks that failed for a known reason."""
        return sorted({check for check, _ in self.violations if check in checks.KNOWN})

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Invariants that were broken for no known reason: check, what was seen."""
        return [one for one in self.violations if one[0] not in checks.KNOWN]

    @property
    def failed(self) -> bool:
        """Whether there are problems."""
        return bool(self.problems)


class Driver(Actor):
    """Sends the requests, carries out the faults, and looks whether all is well."""

    def __init__(
        self,
        cluster: Cluster,
        log: Log,
        plan: Plan,
        work: list[PlannedRequest],
        shape: Shape,
        planners: Planners | None = None,
    ) -> None:
        self._cluster, self._log, self._plan, self._planned, self._shape = cluster, log, plan, work, shape
        self.clients: list[Client] = []
        self.faults = Faults(cluster, plan, planners)
        self.over = asyncio.Event()
        self._by_id: dict[str, Client] = {}
        self._crashed: set[int] = set()  # instances
        self._watch = watch.Watch(log, cluster, self._by_id, lambda: self.faults.calm)
        cluster.sent, cluster.gone, cluster.quarantined = self._sent, self._gone, self._quarantined
        cluster.struck, cluster.wire.failed = self._struck, self._link_failed

    async def started(self) -> None:
        """Begin."""
        self.context.task(self._drive(), "drive")

    async def stopping(self, reason: Reason) -> None:
        """Whoever waits for the end goes on, also when a task of ours has failed."""
        if not self.over.is_set():
            self._log.violate("no internal errors", f"the driver has ended: {reason}")
            self.over.set()

    async def _drive(self) -> None:
        log, now = self._log, self.context.now
        begun = now()
        self.context.task(self._look(), "watch")
        self.context.task(self._add_up(), "amounts")
        faults = self.context.task(self.faults.run(), "faults")
        for planned in self._planned:
            await asyncio.sleep(max(0.0, begun + planned.at - now()))
            self.context.task(self._request(planned), f"r{planned.number}")
        await faults
        await asyncio.sleep(max(0.0, begun + self._shape.span + 2.0 - now()))
        await self.faults.heal()
        deadline = now() + LONGEST
        while now() < deadline and not self._all_ended():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.25)
        for client in self.clients:
            if not client.end:
                log.violate("one end", f"{client.id} has not ended")
            if client.strikes > self._plan.strikes:
                what = f"{client.id} has cost {client.strikes} workers, {self._plan.strikes} is the most"
                log.violate("poison", what)
        self.over.set()

    def _all_ended(self) -> bool:
        return len(self.clients) == len(self._planned) and all(client.end for client in self.clients)

    async def _look(self) -> None:
        while not self.over.is_set():
            await asyncio.sleep(1.0)
            self._watch.look(self.context.now())

    async def _add_up(self) -> None:
        every = watch.AMOUNTS * max(1.0, self._shape.workers / 50)  # it looks at each worker in each ingress
        while not self.over.is_set():
            await asyncio.sleep(every)
            if wrong := self._watch.amounts():
                await asyncio.sleep(MOMENT)
                self._watch.judge(wrong)

    async def _request(self, planned: PlannedRequest) -> None:
        client = Client(planned, self._log, self.context.now, self._failed)
        client.ended = self._watch.over
        client.needs_prefill = self._plan.kv_transfer == "rendezvous"
        self.clients.append(client)
        self._by_id[client.id] = client
        ingresses = [place for place in self._cluster.running(ingress=True) if place.backend is not None]
        if not ingresses:
            client.ends("refused")
            if self._plan.gentle:
                self._log.violate("failures have a reason", f"{client.id} finds no ingress")
            return
        place = ingresses[int(planned.ingress * len(ingresses))]
        client.place, client.process = place, place.process
        backend = place.backend
        assert backend is not None
        self._log("request", f"{client.id} at {place.name}: {len(planned.prompt)} tokens in, {planned.max_tokens} out")
        try:
            client.run = await backend.start(client.job(), client)
        except RequestError as error:
            if not client.end:  # else its ingress died meanwhile
                client.fail(error)
        if client.run is not None and client.end in ("left", "cut off"):
            client.run.cancel()
        elif client.run is not None and planned.leaves == 0:
            client.leave()

    def _sent(self, place: Place, instance: Instance, request: Request) -> None:
        client = self._by_id.get(request.request_id)
        if client is None or place.process is None or not place.process.alive:
            return
        if isinstance(request, Prefill) and request.stored:
            return  # it computes nothing
        if isinstance(request, Prefill):
            client.computing = instance.process
            client.asked.add(instance.instance_id)
        elif isinstance(request, Generate):
            client.sent(instance, request)
            self._watch.sent(instance.instance_id)
        if instance.instance_id in self._crashed or self._cluster.stopped(instance.process):
            client.hit.add(instance.process)  # of which its ingress has not heard yet

    def _link_failed(self, session: Session) -> None:
        for client in self.clients:
            if client.at == session.server.process.name and client.process is session.transport.process:
                client.relinked = True

    def _struck(self, request: str) -> None:
        self._by_id[request].strikes += 1

    def _failed(self, client: Client) -> None:
        why = checks.illegal(client, self._cluster, self.context.now())
        second = str(client.error).endswith(checks.SECOND)  # two workers ended with it, whatever ended them
        excused = client.planned.poison or isinstance(client.error, PoisonRequest) or second  # judged above
        if not why and self._plan.gentle and not excused:
            why = "healthy workers can be reached, and it has moved no more often than it may"
        if why:
            self._log.violate("failures have a reason", f"{client.id} ({client.error}): {why}")

    def _gone(self, process: Process, node_died: bool) -> None:
        """A process is gone. Clients of an ingress see their connections end; requests at a worker have to move."""
        for client in self.clients:
            if client.process is process and not client.end:
                client.ends("cut off")
        who = [client for client in self.clients if client.at == process.name]
        daemon = self._cluster.nodes[process.node].registry
        crashed = bool(process.killed or crash(process.code, left=False, out_of_memory=False))
        if daemon.connected and not node_died:
            lease, late = self._cluster.lease_of(process), EXIT + checks.PROMPT
            self._cluster.system_later(
                late, partial(checks.revoked, self._log, self._cluster, process, lease, daemon.session)
            )
        if crashed:
            self._crashed.add(self._cluster.lease_of(process))
        if crashed:
            self._hit(process)
        for client in who:
            told = daemon.connected and not node_died and client.place is not None and checks.informed(client.place)
            session = daemon.session if told else None
            late = checks.PROMPT if told else UNTOLD
            self._cluster.system_later(late, partial(self._left, client, process, session, self.context.now()))

    def _hit(self, process: Process) -> None:
        """A process crashed or hung: it may have been for any of the requests that it has, or the prompts."""
        untried = any(client.waits_at(process) for client in self.clients)
        for client in self.clients:
            client.was_at(process, untried=untried)

    def _left(self, client: Client, process: Process, session: int | None, died: float) -> None:
        """Check that a client has left a dead process. `session`: of the daemon that could tell; None: none could."""
        daemon, registry = self._cluster.nodes[process.node].daemon, self._cluster.nodes[process.node].registry
        if client.since > died:
            return  # it came later, by old news, and has its own time
        told = session is not None and registry.connected and registry.session == session
        if session is not None and not told:  # the daemon was cut off before it could tell
            self._cluster.system_later(UNTOLD - checks.PROMPT, partial(self._left, client, process, None, died))
            return
        if not daemon.frozen and self._cluster.system.now() - daemon.since > HEARTBEAT:  # else it says so later
            checks.left(self._log, [client], process, "dead", told=told)

    def _quarantined(self, process: Process) -> None:
        """A worker's daemon has quarantined it: requests there have to move, where that can be known."""
        self._hit(process)
        daemon = self._cluster.nodes[process.node].registry
        if daemon.connected:
            there = [client for client in self.clients if client.at == process.name]
            who = [client for client in there if client.place is not None and checks.informed(client.place)]
            self._cluster.system_later(checks.PROMPT, lambda: checks.left(self._log, who, process, "quarantined"))


def simulate(seed: int, shape: Shape = Shape(), *, kept: int = KEPT) -> Outcome:
    """Run one seed. Equal seeds and shapes give equal event logs, byte for byte."""
    outcome: list[Outcome] = []
    try:
        run(_main(seed, shape, kept, outcome))
    except (Deadlock, LeakedTasks) as error:
        if not outcome:
            raise
        outcome[0].violations.append(("no task is left", str(error)))
    return outcome[0]


async def _main(seed: int, shape: Shape, kept: int, found: list[Outcome]) -> None:
    random = random_module.Random(seed)
    loop = asyncio.get_running_loop()
    log = Log(loop.time, kept)
    begun = loop.time()
    loop.set_exception_handler(lambda _loop, about: log.violate("no internal errors", _complaint(about)))
    if (models := draw_on_demand(seed, shape)) is not None:
        await _on_demand(seed, shape, models, log, found)
        return
    plan = draw(random_module.Random(random.getrandbits(64)), shape)
    scaling = draw_scaling(seed, shape, gentle=plan.gentle)
    plan = with_more(plan, shape, seed) if scaling is None else with_planners(plan, scaling)
    work = workload(random_module.Random(random.getrandbits(64)), shape, plan.poison)
    with LogCapture(log):
        async with System(seed=random.getrandbits(63)) as system:
            machine, routing = _machine(random, plan), _routing(random, plan)
            cluster = Cluster(system, log, random, machine, routing, plan.broken, plan.lease, plan.odd)
            cluster.config = SimpleNamespace(max_local_prefill_length=plan.longest_local, kv_peer_fetch=plan.peers)
            cluster.exact = plan.exact
            cluster.wire.repeats = random_module.Random(f"repeats {seed}"), plan.repeats
            own = random_module.Random(f"pool {seed}")
            planners = Planners(cluster, scaling, own) if scaling is not None else None
            how = "gentle" if plan.gentle else "rough"
            blocks = f"kv_transfer {plan.kv_transfer}, leases of {plan.lease:g} s, another layout: {plan.odd or 'none'}"
            log("plan", f"{how}, {len(plan.events)} faults, {cluster.routing.mode}, {blocks}")
            await cluster.build(shape, plan.workers, 0.1, plan.prefill)
            await cluster.open(shape)
            if planners is not None:
                log("planners", f"{planners.plan}")
                planners.open()
            driver = Driver(cluster, log, plan, work, shape, planners)
            cluster.system.start("driver", lambda: driver, restart="temporary", shutdown=1.0)
            await driver.over.wait()
            await asyncio.sleep(LEASE_TTL + 6.0)
            if cluster.wire.harmed:  # what was lost shows in what comes next, and lost subscriptions are opened again
                await asyncio.sleep(max(0.0, cluster.wire.drained() - loop.time()) + MAX_SILENCE + RETRY)
                lease = plan.lease if plan.prefill or plan.peers or (scaling is not None and scaling.prefill) else 0.0
                await asyncio.sleep(lease)  # a lost cancel of a prompt shows by time alone
            if planners is not None:
                await _settle(planners, log)
            checks.settled(log, cluster, whole=not cluster.wire.harmed)
        await asyncio.sleep(1.0)
        checks.ended(log, cluster)
    counted = {"transfer": cluster.transfers.broken, "role-switch": planners.orders.switches if planners else 0}
    counted |= {"staying": int(not plan.exact), "repeat": cluster.wire.repeated}
    happened = Counter(event.fault for event in plan.events) + Counter(counted)
    found.append(_outcome(seed, log, driver.clients, happened, begun, cluster, gentle=plan.gentle))


async def _on_demand(seed: int, shape: Shape, plan: OnDemandPlan, log: Log, found: list[Outcome]) -> None:
    """A seed with models on demand: one machine."""
    random = random_module.Random(f"machine {seed}")
    begun = asyncio.get_running_loop().time()
    work = workload(random, shape)
    with LogCapture(log):
        async with System(seed=random.getrandbits(63)) as system:
            cluster = Cluster(system, log, random, options(128, 0.4), RouterSettings())
            driver = OnDemand(cluster, log, plan, work, random)
            log("plan", f"{plan.budget} of {len(plan.models)} models, {len(plan.events)} faults")
            await cluster.build(replace(shape, nodes=1), 0, 0.1)
            cluster.add("i0", cluster.nodes[0], "ingress")
            await asyncio.sleep(0.5)
            system.start("driver", lambda: driver, restart="temporary", shutdown=1.0)
            await driver.over.wait()
            await asyncio.sleep(LEASE_TTL + 6.0)
            driver.settled()
        await asyncio.sleep(1.0)
        checks.ended(log, cluster)
    happened = Counter(event.fault for event in plan.events) + Counter({"on-demand": 1})
    found.append(_outcome(seed, log, driver.clients, happened, begun, cluster, gentle=not plan.events))


def _outcome(
    seed: int,
    log: Log,
    clients: Sequence[Client],
    happened: Mapping[str, int],
    begun: float,
    cluster: Cluster,
    *,
    gentle: bool,
) -> Outcome:
    return Outcome(
        seed,
        log.digest,
        log.count,
        list(log.lines),
        log.violations,
        dict(sorted(Counter(client.end for client in clients).items())),
        dict(sorted(happened.items())),
        sum(max(0, len(client.sends) - 1) for client in clients),
        asyncio.get_running_loop().time() - begun,
        cluster.wire.payloads,
        cluster.wire.harmed,
        gentle,
    )


async def _settle(planners: Planners, log: Log) -> None:
    """The pool becomes what its planner wants, and that is no other number the next moment."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLED
    while why := planners.orders.unsettled():
        if loop.time() > end:
            log.violate("the pool is as planned", why)
            return
        await asyncio.sleep(0.5)


def _machine(random: random_module.Random, plan: Plan) -> Any:
    blocks, speed = random.choice((32, 64, 128)), random.choice((0.1, 0.2, 0.4))
    if plan.gentle:
        blocks, speed = max(blocks, 128), max(speed, 0.3)
    return options(blocks, speed, plan.kv_transfer)


def _routing(random: random_module.Random, plan: Plan) -> RouterSettings:
    mode = random.choice(MODES)
    busy, queue = (float(random.choice((150, 400))), random.choice((0, 16))) if random.random() < 0.25 else (None, 0)
    busy = None if plan.gentle else busy
    return RouterSettings(mode, busy_prefill=busy, queue_size=queue)


def _complaint(about: dict[str, Any]) -> str:
    """What the loop complains of, with the place but without addresses: those differ from run to run."""
    error = about.get("exception")
    if error is None:
        return str(about.get("message")).partition("<")[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
