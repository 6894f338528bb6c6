"""A machine that serves more models than it may load: the real keeper, backend and graph runner, and what must hold."""

import asyncio
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from dynamod.actor import Actor, Crashed, Reason
from dynamod.daemon.exits import crash
from dynamod.discovery.keys import EXITED
from dynamod.discovery.view import View
from dynamod.features.on_demand.component import OnDemandComponent
from dynamod.ingress.messages import GetBackend
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import EngineFailed, Overloaded, PoisonRequest, RequestError, TimedOut
from dynamod.message.worker import Request
from dynamod.runtime.context import ComponentContext
from dynamod.runtime.plan import ServicePlan

from .clients import Client, PlannedRequest
from .cluster import Cluster
from .etcd import SimulatedRegistry
from .events import Log
from .faults import Faults, Plan
from .model import CONTEXT, SimulatedLoader
from .places import Node, Place
from .pool import GRAPH, Machine
from .pool_faults import Until, WorkerTroubles
from .shape import CLOCKS, MIGRATIONS, Event, Fault, Shape
from .wire import Process, SimulatedTransport

SHARE = 0.1
"""Of the seeds that have models on demand."""

KINDS: tuple[Fault, ...] = ("crash", "hang", "link", "ingress-restart", "start-fail", "stuck-drain")
"""Faults of such a machine, beside clients that leave."""

LOOK = 0.05
IMPATIENT = 0.2
"""Seconds after which some clients leave that wait for their model."""

LONGEST = 40.0
"""Seconds that a request waits for its model at most; and all of its clocks behind."""

TURN = 20.0
"""Seconds within which a request has its turn where no fault happens: each model before it once, with its patience."""


@dataclass(frozen=True, slots=True)
class OnDemandPlan:
    """`config`: of the processor. `models`: by component. `budget`: models that may be loaded at once."""

    config: dict[str, Any]
    models: dict[str, str]
    budget: int
    events: tuple[Event, ...]
    startup: float


def draw_on_demand(seed: int, shape: Shape) -> OnDemandPlan | None:
    """The models of a run, None for most seeds."""
    random = random_module.Random(f"models {seed}")
    if "on-demand" not in shape.faults or random.random() >= SHARE:
        return None
    count = random.choice((3, 4, 5))
    budget = random.randint(1, count - 1)
    kinds, events = [fault for fault in KINDS if fault in shape.faults], list[Event]()
    for _ in range(random.choice((0, 0, 1, 2, 4)) if kinds else 0):
        at, lasts = random.uniform(0.2, shape.span), random.choice((0.3, 1.0, 3.0)) * random.uniform(0.5, 1.5)
        events.append(Event(at, random.choice(kinds), lasts, random.random(), random.random(), 0.1))
    models = {f"M{number}": f"model-{number}" for number in range(count)}
    entries = {
        name: {
            "component": component,
            "ttl": random.choice((None, 0.5, 2.0)),
            "load_timeout": random.choice((3.0, 30.0)),
            "preload": budget > 1 and component == "M0" and random.random() < 0.5,
            "concurrency": random.choice((None, None, 1, 4)),
        }
        for component, name in models.items()
    }
    config = {
        "models": entries,
        "budget": {"models": budget, "patience": random.choice((0.2, 1.0))},
        "queue_timeout": LONGEST,
        "first_token_timeout": CLOCKS.first,
        "token_gap_timeout": CLOCKS.gap,
        "migration_limit": MIGRATIONS,
    }
    events.sort(key=lambda event: event.at)
    return OnDemandPlan(config, models, budget, tuple(events), random.choice((0.05, 0.3, 1.0)))


class SimulatedOnDemand(OnDemandComponent):
    """The processor of models on demand, whose models are in memory."""

    def __init__(
        self,
        process: Process,
        registry: SimulatedRegistry,
        transport: SimulatedTransport,
        config: dict[str, Any],
        report: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        self.process, self.registry = process, registry
        self._transport_of, self._report, self._failed = transport, report, failed
        self.backend: Any = None

        async def caught_up(_prefix: str, _watcher: Any) -> None:
            return

        context = SimpleNamespace(
            registry=registry,
            transport=transport,
            view=View(registry),
            follow_exits=lambda: registry.watch(EXITED, transport.exited),
            caught_up=caught_up,
            plan=SimpleNamespace(graph=GRAPH, config={}),
        )
        plan = ServicePlan("Processor", {"namespace": "dynamo", "config": config})
        super().__init__(ComponentContext(cast("Any", context), plan))
        self.models.loader = SimulatedLoader()

    async def started(self) -> None:
        """As the real one."""
        await super().started()
        self.backend = await self.get_backend(GetBackend())
        self._report("ready")

    async def stopping(self, reason: Reason) -> None:
        """Close the connections."""
        await super().stopping(reason)
        await self._transport_of.close()
        if isinstance(reason, Crashed) and not isinstance(reason.error, asyncio.CancelledError | TimeoutError):
            self._failed(str(reason))
        self._report("stopped")

    async def _card(self, name: str, component: str) -> ModelCard:
        return ModelCard(name, context_length=CONTEXT)

    def _memory(self, model: str) -> int:
        return 0

    def _workers_of(self, model: str) -> list[Instance]:
        card = self.cards.get(model)
        return [] if card is None else list(self._view.served(model, card, "").instances)

    @property
    def keeper(self) -> Any:
        """What decides."""
        return self._keeper


class OnDemand(Actor):
    """Builds the machine, sends the requests, carries out the faults, and looks whether all is well."""

    def __init__(
        self, cluster: Cluster, log: Log, plan: OnDemandPlan, work: list[PlannedRequest], random: random_module.Random
    ) -> None:
        self._cluster, self._log, self.plan, self._random = cluster, log, plan, random
        names = list(plan.models.values())
        self._planned = [replace(one, model=random.choice(names)) for one in work]
        self.clients: list[Client] = []
        self._by_id: dict[str, Client] = {}
        self.over = asyncio.Event()
        self._machine: Machine | None = None
        self._troubles = WorkerTroubles(
            cluster, random, plan.startup, lambda: None, self._ended, lambda _name: None, patient=True
        )
        self.faults = Faults(cluster, Plan(plan.events, False, 0), self)
        cluster.booted, cluster.makers["ingress"] = self._booted, self._ingress
        cluster.sent, cluster.gone = self._sent, self._gone

    # The machine.

    def _booted(self, node: Node) -> None:
        gpus = dict.fromkeys(self.plan.models, 0)
        self._machine = Machine(self._cluster, node, gpus, 0, lambda: node.registry.connected, models=self.plan.models)

    def _ingress(self, place: Place) -> SimulatedOnDemand:
        cluster, log = self._cluster, self._log
        process, registry, link = cluster.new_process(place), place.registry, place.link
        assert registry is not None
        assert link is not None
        assert self._machine is not None
        link.connection.owner.answer, registry.ask = self._answer, link.channel.ask
        transport = SimulatedTransport(
            cluster.wire, process, lambda instance, request: cluster.sent(place, instance, request)
        )
        failed = partial(log.violate, "no internal errors")
        place.keeper = made = SimulatedOnDemand(
            process, registry, transport, self.plan.config, partial(cluster.reported, process), failed
        )
        return made

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        assert self._machine is not None
        if command == "scale":
            component, replicas = str(arguments["component"]), int(arguments["replicas"])
            self._log("order", f"{component}: {replicas}")
            for place in self._cluster.alive("worker") if not replicas else ():
                if place.model == self.plan.models[component] and place.process is not None:
                    self._unloads(place.process, component)
        return await self._machine.answer(command, arguments)

    def _unloads(self, process: Process, component: str) -> None:
        for client in self.clients:
            if client.at == process.name and not client.end:
                self._log.violate("no unload under a request", f"{component} is unloaded, where {client.id} is")

    def happen(self, event: Event, node: Node, until: Until) -> None:
        """A fault of the workers."""
        if event.fault == "start-fail":
            self._troubles.do_not_start(event, node, until)
        elif event.fault == "stuck-drain":
            self._troubles.do_not_end(event, until)

    def _ended(self, process: str, requests: int, in_good_order: bool) -> None:
        if requests and in_good_order:
            self._log.violate("drains let requests finish", f"{process} ends with {requests} requests")

    # The requests.

    async def started(self) -> None:
        """Begin."""
        self.context.task(self._drive(), "drive")

    async def _drive(self) -> None:
        now = self.context.now
        begun = now()
        self.context.task(self._look(), "watch")
        faults = self.context.task(self.faults.run(), "faults")
        for planned in self._planned:
            await asyncio.sleep(max(0.0, begun + planned.at - now()))
            self._begin(planned)
        await faults
        await asyncio.sleep(1.0)
        await self.faults.heal()
        deadline = now() + LONGEST + (CLOCKS.first or 0.0) * (MIGRATIONS + 2)
        while now() < deadline and not all(client.end for client in self.clients):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.25)
        for client in self.clients:
            if not client.end:
                self._log.violate("one end", f"{client.id} has not ended")
        self.over.set()

    def _begin(self, planned: PlannedRequest) -> None:
        client = Client(planned, self._log, self.context.now, self._failed)
        self.clients.append(client)
        self._by_id[client.id] = client
        task = self.context.task(self._request(client), client.id)
        if planned.leaves == 0:
            self._cluster.system_later(IMPATIENT, lambda: self._leaves(client, task))

    def _leaves(self, client: Client, task: "asyncio.Task[Any]") -> None:
        client.leave()
        task.cancel()  # as the HTTP server does

    async def _request(self, client: Client) -> None:
        place = next(iter(self._cluster.running(ingress=True)), None)
        backend = place.keeper.backend if place is not None and place.keeper is not None else None
        if place is None or backend is None:
            client.ends("refused")
            return
        client.place, client.process = place, place.process
        self._log("request", f"{client.id} for {client.planned.model}")
        try:
            client.run = await backend.start(client.job(), client)
        except RequestError as error:
            if not client.end:
                client.fail(error)
        if client.run is not None and client.end:
            client.run.cancel()

    def _sent(self, place: Place, instance: Instance, request: Request) -> None:
        client = self._by_id.get(request.request_id)
        if client is None or place.process is None or not place.process.alive:
            return
        calm = not self.plan.events
        if calm and not client.sends and (waited := self.context.now() - client.begun) > TURN:
            self._log.violate("no model starves", f"{client.id} has waited {waited:.1f} s for {client.planned.model}")
        client.sent(instance, cast("Any", request))

    def _gone(self, process: Process, _node_died: bool) -> None:
        for client in self.clients:
            if process.killed or crash(process.code, left=False, out_of_memory=False):
                client.was_at(process)
            if client.process is process and not client.end:
                client.ends("cut off")

    def _failed(self, client: Client) -> None:
        error = client.error
        twice = isinstance(error, PoisonRequest) and len(client.hit) > 1  # two crashes, the second while it was alone
        if not self.plan.events or not (twice or isinstance(error, Overloaded | EngineFailed | TimedOut)):
            self._log.violate("failures have a reason", f"{client.id}: {type(error).__name__}: {error}")

    # The rules.

    async def _look(self) -> None:
        while not self.over.is_set():
            await asyncio.sleep(LOOK)
            self.look()

    def look(self) -> None:
        """What must hold at any moment."""
        assert self._machine is not None
        pools = {component: self._machine.pool(component) for component in self.plan.models}
        loaded = [component for component, pool in pools.items() if pool.replicas]
        if len(loaded) > self.plan.budget:
            self._log.violate("within the budget", f"{', '.join(loaded)} are loaded, {self.plan.budget} may be")
        for component, pool in pools.items():
            if len(pool.replicas) > 1:
                self._log.violate("one load of a model", f"{component} has {len(pool.replicas)} workers")

    def settled(self) -> None:
        """All requests are over, and time has passed: the keeper knows what there is."""
        assert self._machine is not None
        self.look()
        places = self._cluster.running(ingress=True)
        keeper = places[0].keeper.keeper if places and places[0].keeper is not None else None
        if keeper is None or not hasattr(keeper, "core"):
            self._log.violate("what died is started again", "there is no keeper")
            return
        for name, model in keeper.core.models.items():
            states = [one.state for one in self._machine.pool(model.settings.component).replicas]
            if model.running or model.waiting:
                self._log.violate("requests end", f"{name} has {len(model.running)} and {len(model.waiting)} requests")
            if states != {"ready": ["Ready"], "unloaded": []}.get(model.state):
                self._log.violate("the keeper knows its workers", f"{name} is {model.state}, its workers are {states}")
            if model.state == "ready" and model.keep is not None:
                self._log.violate("idle models are unloaded", f"{name} is loaded")
