"""What a component is given in its process: configuration, registry, transports, and the other components there."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from dynamod.actor import Ref, System
from dynamod.actor.inspect import inspect_system
from dynamod.discovery.base import Watcher
from dynamod.discovery.keys import (
    CARDS,
    EXITED,
    STATIC,
    Address,
    card_key,
    coming_key,
    instance_key,
    place_of,
    static_card_key,
    static_key,
)
from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.records import keep
from dynamod.discovery.view import View, disagree
from dynamod.engine.base import Job
from dynamod.http.metrics import Metrics
from dynamod.ingress.static_workers import describe
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.node import Heartbeat, State
from dynamod.message.protocol import OLDEST_NODE, PROTOCOL
from dynamod.observe.metrics import Row
from dynamod.transport.base import Spawn
from dynamod.transport.unix import UnixServer
from dynamod.transport.waiting import comes

from .dispatcher import EndpointDispatcher, Make
from .plan import SHARES, HostPlan, ServicePlan
from .transports import READY, TransportSelector

log = logging.getLogger("dynamod.daemon")

CAUGHT_UP = "local/caught-up/"
"""Keys that a process puts to see how far the news has come."""
CATCH_UP = 5.0
ANSWER = 5.0
"""Seconds within which an actor of the process answers."""
MADE_UP = "run-"
"""So begin the names that `dynamo-run` gives to its graphs."""
LOOPBACK = "127.0.0.1"
STATIC_ID = 1
"""Instance id of whatever is at a static address of other nodes."""


Question = Callable[[dict[str, Any]], Awaitable[Any]]
"""Answers a question by its arguments. Raises UserError."""


def _subject(address: Address, lease: int | None) -> str:
    """Where an instance receives; without a lease a static worker, as NVIDIA Dynamo names it."""
    from dynamod.transport.nats.transport import instance_subject

    subject = instance_subject(address.namespace, address.component, address.endpoint, lease or 0)
    return subject if lease is not None else subject.removesuffix("-0")


@dataclass(slots=True, eq=False)
class ProcessContext:
    """Shared by all components of a process."""

    plan: HostPlan
    system: System
    registry: LinkRegistry
    endpoints: EndpointDispatcher
    server: UnixServer
    transport: TransportSelector
    fds: Sequence[int] = ()
    components: dict[str, Ref] = field(default_factory=dict[str, Ref])
    processor: Ref | None = None  # the processor of this process, once it can be asked
    http: list[Metrics] = field(default_factory=list[Metrics])  # counters of the HTTP servers in this process
    questions: dict[str, Question] = field(default_factory=dict[str, Question])  # of the daemon's, to components
    rows: list[Callable[[], Iterable[Row]]] = field(default_factory=list[Callable[[], Iterable[Row]]])  # of metrics
    heartbeat: Callable[[], Heartbeat] = Heartbeat  # with the report of the engine; see worker.worker
    grace: float = 2.0  # seconds that open answers get to finish when the process is stopped
    subject: str = ""  # where other nodes reach this process
    _view: View | None = None
    _follows: bool = False

    @classmethod
    async def open(
        cls, plan: HostPlan, system: System, spawn: Spawn, registry: LinkRegistry, fds: Sequence[int] = ()
    ) -> Self:
        """Connect the process to its daemon and open its request server. Does not wait for a lease.

        `spawn` starts tasks of an actor that lives as long as the context. Raises OSError when the socket for requests
        cannot be opened.
        """
        endpoints = EndpointDispatcher()
        transport = TransportSelector(plan.name, plan.server, endpoints.receive, spawn)
        registry.welcomed.append(transport.welcome)
        await system.ready(system.start("registry", lambda: registry, restart="temporary"), timeout=10)
        server = UnixServer(plan.server, endpoints.receive)
        await server.start()
        spawn(server.listener.keep(), "socket")
        return cls(plan, system, registry, endpoints, server, transport, fds)

    async def close(self) -> None:
        """Close the transports, after what is written has left. The connection to the daemon closes with the system."""
        await self.transport.close()
        await self.server.close()

    async def answer(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """What every process answers its daemon. Raises UserError for an unknown command."""
        match command:
            case "inspect":
                return inspect_system(self.system, str(arguments.get("actor", "")))
            case "metrics" | "openmetrics" | "statistics" | "bounded":
                from .statistics import report

                return await report(self, command)
            case "explain":
                return await self._explain(str(arguments.get("request", "")))
            case _ if command in self.questions:
                return await self.questions[command](dict(arguments))
            case _:
                raise UserError(f"unknown command {command}")

    async def _explain(self, request: str) -> Any:
        if self.processor is None:
            return []
        from dynamod.ingress.messages import Explain  # loaded where a processor runs, and only there

        return await self.processor.ask(Explain(request), timeout=ANSWER)

    def rename(self, name: str) -> None:
        """The daemon has given the process another name."""
        self.plan = msgspec.structs.replace(self.plan, name=name)

    @property
    def view(self) -> View:
        """Live instances and models, watched from the first use on."""
        if self._view is None:
            # an instance that leaves the registry may be draining: its open streams continue until the socket closes,
            # which the kernel does at once when the process dies
            self._view = View(self.registry)
            self.follow_exits()
        return self._view

    def follow_exits(self) -> None:
        """Hear at once of processes that end on other nodes. A component that opens streams calls this."""
        if not self._follows:
            self._follows = True
            self.registry.watch(EXITED, self.transport.exited)

    async def reachable(self, address: Address) -> None:
        """Let other nodes reach this process, if there are any: before its first instance is published."""
        await self.registry.leased(timeout=60)
        if self.transport.tcp is not None:
            await self.transport.tcp.serve()
        if self.transport.connection is not None and not self.subject:
            self.subject = await self.transport.serve(_subject(address, self.registry.lease))

    def host(self) -> str:
        """The address at which other nodes reach this machine; its loopback address when there are none."""
        connection = self.transport.connection
        if self.transport.tcp is not None:
            return self.transport.tcp.settings.address
        if connection is None:
            return LOOPBACK
        server = urlsplit(connection.settings.servers[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:  # sends nothing
            way.connect((server.hostname or LOOPBACK, server.port or 1))
            return str(way.getsockname()[0])

    async def caught_up(self, prefix: str, watcher: Watcher) -> None:
        """Watch a prefix and wait (with a bound) until all watchers know all that stands there now.

        What we put comes back after the snapshots that were asked for before.
        """
        registry, back = self.registry, asyncio.Event()
        key = f"{CAUGHT_UP}{registry.lease:x}"
        registry.watch(prefix, watcher)
        registry.put(key, b"")
        registry.watch(key, lambda _key, _value: back.set())
        if not await comes(back, CATCH_UP):
            log.warning("the registry did not answer within %g s; continuing without", CATCH_UP)
        registry.delete(key)

    def static_instance(self, address: Address) -> Instance | None:
        """What stands at a fixed address on other nodes, if there is a transport that reaches them."""
        if self.transport.connection is None:
            return None
        place, transport = (address.namespace, address.component, address.endpoint), {"nats": _subject(address, None)}
        return Instance(*place, STATIC_ID, transport, node="elsewhere")


class ComponentContext:
    """One component's place in its process. `namespace`, `component`: the first parts of its address."""

    def __init__(self, process_context: ProcessContext, service: ServicePlan) -> None:
        self.process_context = process_context
        self.service = service
        self.name = service.name
        self.namespace = str(service.spec.get("namespace", "dynamo"))
        self.component = str(service.spec.get("component", self.name))
        self.pool = ""  # of the instances that are published from now on
        self._published: dict[str, list[str]] = {}  # keys, by endpoint

    @property
    def config(self) -> Mapping[str, Any]:
        """The component's own configuration, common keys merged in."""
        config: Mapping[str, Any] = self.service.spec.get("config", {})
        return config

    async def fetch(self, model: str, *, weights: bool = True) -> Path:
        """The path of a model; `ps` shows the download meanwhile, if there is one. Raises UserError."""
        from dynamod.preprocess.fetch import fetch

        path = await fetch(model, partial(self.tell, phase="download"), weights=weights)
        self.tell("")
        return path

    def tell(self, text: str, state: str = "Starting", role: str = "", phase: str = "") -> None:
        """Have `ps` show what the component does, while it starts or later.

        `role`: of a worker; `phase`: of a start, see State.
        """
        self.process_context.registry.send(State(self.name, state, text, role, phase))

    def listeners(self) -> list[socket.socket]:
        """The listening sockets that the daemon bound for this component, one per address."""
        places = [place for purpose, place in self.service.sockets.items() if purpose != SHARES]
        return [socket.socket(fileno=self.process_context.fds[place]) for place in places]

    def shares(self) -> int | None:
        """The memory in which the processes that share these sockets count their clients; None: there is none."""
        place = self.service.sockets.get(SHARES)
        return None if place is None else self.process_context.fds[place]

    def address(self, endpoint: str) -> Address:
        """The address of one of the component's endpoints."""
        return Address(self.namespace, self.component, endpoint)

    def serve(self, endpoint: str, ref: Ref, make: Make = Job) -> None:
        """Send requests for the endpoint to `ref`; it is unknown to others before `publish`."""
        self.process_context.endpoints.add(str(self.address(endpoint)), ref, make)

    async def announce(self, endpoint: str, ref: Ref, card: ModelCard | None = None, *, static: bool = False) -> None:
        """Send requests for the endpoint to `ref`, and let others find it.

        `static`: at a fixed address, known to this node only. Raises UserError when the model's name, or the static
        address, is taken.
        """
        self.serve(endpoint, ref)
        if static:
            await self._publish_static(self.address(endpoint), card)
            return
        if card is not None:
            await self._require_agreement(card)
        await self.reachable(endpoint)
        self.publish(endpoint, card)

    async def reachable(self, endpoint: str) -> None:
        """Let other nodes reach this process, before the first instance is published."""
        await self.process_context.reachable(self.address(endpoint))

    def publish(self, endpoint: str, card: ModelCard | None = None) -> None:
        """Put the instance (and its model card) into the registry. The lease must have been granted."""
        instance = self._instance(endpoint)
        if card is not None:  # comes first and goes last: an instance that others see can be asked
            self._put(endpoint, card_key(instance), card)
        self._put(endpoint, instance_key(instance), instance)
        if (coming := coming_key(instance)) in self._published[endpoint]:
            self._published[endpoint].remove(coming)
            self.process_context.registry.delete(coming)

    def expect(self, endpoint: str, card: ModelCard) -> None:
        """Let the frontends of this node read the files of a model while it is loaded here. `publish` ends that."""
        self._put(endpoint, coming_key(self._instance(endpoint)), card)

    def withdraw(self, endpoint: str | None = None) -> None:
        """Take the component's instances (or one) out of the registry; streams that are open continue."""
        for name in [endpoint] if endpoint is not None else list(self._published):
            for key in reversed(self._published.pop(name, [])):
                self.process_context.registry.delete(key)

    def _put(self, endpoint: str, key: str, value: Instance | ModelCard) -> None:
        value = msgspec.structs.replace(value, protocol=PROTOCOL, since=OLDEST_NODE)
        self.process_context.registry.put(key, msgspec.json.encode(value))
        keys = self._published.setdefault(endpoint, [])
        if key not in keys:
            keys.append(key)

    def _instance(self, endpoint: str) -> Instance:
        process_context = self.process_context
        tcp = process_context.transport.tcp
        others = {"nats": process_context.subject} | (tcp.places if tcp is not None else {})
        return Instance(
            namespace=self.namespace,
            component=self.component,
            endpoint=endpoint,
            instance_id=process_context.registry.lease,
            transport={"unix": process_context.server.path} | {way: where for way, where in others.items() if where},
            node=process_context.registry.node,
            pid=os.getpid(),
            process=process_context.plan.name,
            pool=self.pool,
        )

    async def _require_agreement(self, card: ModelCard) -> None:
        """A model has one tokenizer wherever it is served. Raises UserError when another worker says otherwise.

        Workers of our own graph may: they are about to be replaced by such as us. On other nodes a graph of the same
        name is ours too, unless `dynamo-run` has made up that name, which it does in the same way everywhere.
        """
        process_context, cards = self.process_context, dict[str, ModelCard]()
        graph, here = f"{process_context.plan.graph}/", process_context.registry.node
        view = process_context.view  # watches from here on
        await process_context.caught_up(CARDS, keep(cards, ModelCard))
        instances = {card_key(instance): instance for instance in view.all_instances()}
        for key, other in cards.items():
            if not disagree(card, other):
                continue
            there = instances.get(key)
            elsewhere = there is not None and there.node != here
            ours = there is not None and there.process.startswith(graph)
            if ours and not (elsewhere and graph.startswith(MADE_UP)):
                continue
            other_worker = "another worker" if there is None or not there.process else there.process
            where = f" on {there.node}" if there is not None and elsewhere else ""
            raise UserError(
                f"the model name {card.name!r} is taken: {other_worker}{where} serves it {_difference(card, other)}",
                "give this one another name: --model-name or served_model_name",
            )

    async def _publish_static(self, address: Address, card: ModelCard | None) -> None:
        """Raises UserError when another process serves there already: on this node, or elsewhere (it is asked)."""
        process_context, transport = self.process_context, self.process_context.transport
        known: set[str] = set()
        await process_context.caught_up(f"{STATIC}{place_of(address)}/", lambda key, _value: known.add(key))
        taken, where = False, ""
        if not known:
            other = process_context.static_instance(address)
            if other is not None and transport.connection is not None and await transport.connection.ready(READY):
                taken, where = await describe(transport, other) is not None, ", on another node"
            if not taken and transport.connection is not None:
                process_context.subject = await transport.serve(_subject(address, None))
        instance = self._instance(address.endpoint)
        if taken or known - {static_key(instance)}:
            text = f"a static worker serves dyn://{address} already{where}"
            raise UserError(text, "a static address is for one worker: choose another")
        self._put(address.endpoint, static_key(instance), instance)
        if card is not None:
            self._put(address.endpoint, static_card_key(instance), card)


def _difference(card: ModelCard, other: ModelCard) -> str:
    """How the other one serves it."""
    if other.kind != card.kind:
        return f"as {other.kind}"
    if card.types and other.types and card.inputs != other.inputs:
        return f"for {', '.join(other.types)}, here for {', '.join(card.types)}"
    if other.context_length != card.context_length:
        lengths = f"{other.context_length} tokens, here {card.context_length}"
        return f"with another tokenizer or template, or another context length ({lengths})"
    return "with another tokenizer or template"


Component = Callable[[ComponentContext], Any]
"""How a component that is an actor is made."""
