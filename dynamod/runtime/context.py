"""What a component finds around it in its process: configuration, registry, post, and the other components there."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dynamod.actor import Ref, System
from dynamod.discovery.base import Watcher
from dynamod.discovery.keys import CARDS, EXITED, STATIC, Address, card_key, instance_key, place_of, static_key
from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.view import View, disagree
from dynamod.http.metrics import Metrics
from dynamod.ingress.static_workers import describe
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.worker import Request
from dynamod.transport.base import Outbound, Sink
from dynamod.transport.local import LocalTransport
from dynamod.transport.unix import UnixServer, UnixTransport

from .dispatcher import EndpointDispatcher, Make
from .plan import HostPlan, ServicePlan
from .remote import READY, Remote

log = logging.getLogger("dynamod.daemon")

CAUGHT_UP = "local/caught-up/"
"""Keys that a process puts to see how far the news has come."""
CATCH_UP = 5.0
MADE_UP = "run-"
"""So begin the names that `dynamo-run` gives to its graphs."""
STATIC_ID = 1
"""Instance id of whatever is at a static address of other nodes."""


class TransportSelector:
    """The post of a process: picks the transport that reaches an instance."""

    def __init__(self, server: str, local: LocalTransport, unix: UnixTransport, remote: Remote) -> None:
        self._server, self._local, self._unix, self._remote = server, local, unix, remote
        self._subjects: dict[int, str] = {}  # of instances on other nodes that were sent to
        self.node = ""

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is told to `sink.lost`."""
        path = instance.transport.get("unix", "")
        if path == self._server:
            return self._local.open(instance, request, sink)
        subject = instance.transport.get("nats")
        if subject is None or (instance.node == self.node and self._unix.reaches(path)):
            return self._unix.open(instance, request, sink)
        if self._remote.transport is None:
            asyncio.get_running_loop().call_soon(sink.lost, f"node {instance.node} is only reached over NATS")
            return _Nowhere()
        self._subjects[instance.instance_id] = subject
        return self._remote.transport.open(instance, request, sink)

    def exited(self, key: str, value: bytes | None) -> None:
        """A process of another node is gone, which NATS would tell later."""
        if value is not None and self._remote.transport is not None:
            subject = self._subjects.pop(int(key.removeprefix(EXITED), 16), None)
            if subject is not None:
                self._remote.transport.forget(subject)

    async def close(self) -> None:
        """Close all connections."""
        await self._unix.close()


def local_and_unix(spawn: Callable[[Coroutine[Any, Any, None], str], Any]) -> tuple[LocalTransport, UnixTransport]:
    """The posts of a process that serves nothing itself."""
    return LocalTransport(
        lambda endpoint, _request, reply: reply.failed("NotFound", f"nobody serves {endpoint} here")
    ), (UnixTransport(spawn))


def static_subject(namespace: str, component: str, endpoint: str) -> str:
    """Where a static worker receives, as the original names it: an instance's subject without the lease."""
    from dynamod.transport.nats.transport import instance_subject

    return instance_subject(namespace, component, endpoint, 0).removesuffix("-0")


class _Nowhere:
    def cancel(self) -> None:
        """Tell the worker that the reader has left; the sink is called no more."""


@dataclass(slots=True, eq=False)
class ProcessContext:
    """Shared by all components of a process."""

    plan: HostPlan
    system: System
    registry: LinkRegistry
    endpoints: EndpointDispatcher
    server: UnixServer
    unix: UnixTransport
    transport: TransportSelector
    remote: Remote
    fds: Sequence[int] = ()
    components: dict[str, Ref] = field(default_factory=dict[str, Ref])
    processor: Ref | None = None  # the processor of this process, once it can be asked
    http: list[Metrics] = field(default_factory=list[Metrics])  # counters of the HTTP servers in this process
    in_step: Callable[[], tuple[float, int] | None] = lambda: None  # the engine's own report; see worker.worker
    subject: str = ""  # where other nodes reach this process
    _view: View | None = None
    _follows: bool = False

    def rename(self, name: str) -> None:
        """The daemon has given the process another name."""
        self.plan = msgspec.structs.replace(self.plan, name=name)

    @property
    def view(self) -> View:
        """Live instances and models, watched from the first use on."""
        if self._view is None:
            # an instance that leaves the registry may be draining: its open streams go on until the socket closes,
            # which the kernel does at once when the process dies
            self._view = View(self.registry)
            self.follow_exits()
        return self._view

    def follow_exits(self) -> None:
        """Hear at once of processes that end on other nodes. Whoever opens streams calls this."""
        if not self._follows:
            self._follows = True
            self.registry.watch(EXITED, self.transport.exited)

    async def reachable(self, namespace: str, component: str, endpoint: str) -> None:
        """Let other nodes reach this process, if there are any: before its first instance is published."""
        await self.registry.leased(timeout=60)
        if self.remote.connection is not None and not self.subject:
            from dynamod.transport.nats.transport import instance_subject

            self.subject = await self.remote.serve(
                instance_subject(namespace, component, endpoint, self.registry.lease)
            )

    async def caught_up(self, prefix: str, watcher: Watcher) -> None:
        """Watch a prefix and wait (with a bound) until all that stands there now has been told, to all watchers.

        What we put comes back behind the snapshots that were asked for before.
        """
        registry, back = self.registry, asyncio.Event()
        key = f"{CAUGHT_UP}{registry.lease:x}"
        registry.watch(prefix, watcher)
        registry.put(key, b"")
        registry.watch(key, lambda _key, _value: back.set())
        try:
            async with asyncio.timeout(CATCH_UP):
                await back.wait()
        except TimeoutError:
            log.warning("the registry did not answer within %g s; going on without", CATCH_UP)
        registry.delete(key)

    def static_instance(self, address: Address) -> Instance | None:
        """What stands at a fixed address on other nodes, if there is a post that reaches them."""
        if self.remote.connection is None:
            return None
        namespace, component, endpoint = address.namespace, address.component, address.endpoint
        transport = {"nats": static_subject(namespace, component, endpoint)}
        return Instance(namespace, component, endpoint, STATIC_ID, transport, node="elsewhere")


class ComponentContext:
    """One component's place in its process."""

    def __init__(self, process_context: ProcessContext, service: ServicePlan) -> None:
        self.process_context = process_context
        self.service = service
        self.name = service.name
        self._published: dict[str, Instance] = {}

    @property
    def config(self) -> Mapping[str, Any]:
        """The component's own configuration, common keys merged in."""
        config: Mapping[str, Any] = self.service.spec.get("config", {})
        return config

    def listener(self) -> socket.socket:
        """The listening socket that the daemon bound for this component."""
        return socket.socket(fileno=self.process_context.fds[self.service.sockets["http"]])

    @property
    def namespace(self) -> str:
        """First part of the component's address."""
        return str(self.service.spec.get("namespace", "dynamo"))

    @property
    def component(self) -> str:
        """Second part of the component's address."""
        return str(self.service.spec.get("component", self.name))

    def path(self, endpoint: str) -> str:
        """`namespace.component.endpoint` of one of the component's endpoints."""
        return f"{self.namespace}.{self.component}.{endpoint}"

    def serve(self, endpoint: str, ref: Ref, make: Make | None = None) -> None:
        """Send requests for the endpoint to `ref`; nobody knows of it before `publish`."""
        if make is None:
            self.process_context.endpoints.add(self.path(endpoint), ref)
        else:
            self.process_context.endpoints.add(self.path(endpoint), ref, make)

    async def reachable(self, endpoint: str) -> None:
        """Let other nodes reach this process, before the first instance is published."""
        await self.process_context.reachable(self.namespace, self.component, endpoint)

    def publish(self, endpoint: str, card: ModelCard | None = None) -> Instance:
        """Put the instance (and its model card) into the registry. The lease must have been granted."""
        process_context = self.process_context
        instance = self._instance(endpoint)
        process_context.registry.put(instance_key(instance), msgspec.json.encode(instance))
        if card is not None:
            process_context.registry.put(card_key(instance), msgspec.json.encode(card))
        self._published[endpoint] = instance
        return instance

    def _instance(self, endpoint: str) -> Instance:
        process_context = self.process_context
        return Instance(
            namespace=self.namespace,
            component=self.component,
            endpoint=endpoint,
            instance_id=process_context.registry.lease,
            transport={
                "unix": process_context.server.path,
                **({"nats": process_context.subject} if process_context.subject else {}),
            },
            node=process_context.registry.node,
            pid=os.getpid(),
            process=process_context.plan.name,
        )

    async def require_agreement(self, card: ModelCard) -> None:
        """A model has one tokenizer wherever it is served. Raises UserError when another worker says otherwise.

        Workers of our own graph may: they are about to be replaced by such as us. On other nodes a graph of the same
        name is ours too, unless `dynamo-run` has made up that name, which it does in the same way everywhere.
        """
        process_context, cards, graph = (
            self.process_context,
            dict[str, ModelCard](),
            f"{self.process_context.plan.graph}/",
        )
        view = process_context.view  # watches from here on
        await process_context.caught_up(CARDS, lambda key, value: _keep(cards, key, value))
        instances = {card_key(instance): instance for instance in view.all_instances()}
        for key, other in cards.items():
            there = instances.get(key)
            ours = there is not None and there.process.startswith(graph)
            if ours and there is not None and there.node != process_context.registry.node:
                ours = not graph.startswith(MADE_UP)
            if disagree(card, other) and not ours:
                who = "another worker" if there is None or not there.process else there.process
                where = f" on {there.node}" if there is not None and there.node != process_context.registry.node else ""
                raise UserError(
                    f"the model name {card.name!r} is taken: {who}{where} serves it {_difference(card, other)}",
                    "give this one another name: --model-name or served_model_name",
                )

    async def publish_static(self, endpoint: str) -> Instance:
        """Serve at a fixed address, known to this node only. Raises UserError when somebody does already."""
        process_context = self.process_context
        address = Address(self.namespace, self.component, endpoint)
        known: set[str] = set()
        await process_context.caught_up(f"{STATIC}{place_of(address)}/", lambda key, _value: known.add(key))
        if not known:
            await self._require_no_other(address)
            if process_context.remote.connection is not None:
                process_context.subject = await process_context.remote.serve(
                    static_subject(self.namespace, self.component, endpoint)
                )
        instance = self._instance(endpoint)
        if known - {static_key(instance)}:
            raise UserError(
                f"a static worker serves dyn://{address} already", "a static address is for one worker: choose another"
            )
        process_context.registry.put(static_key(instance), msgspec.json.encode(instance))
        return instance

    async def _require_no_other(self, address: Address) -> None:
        """Ask at the static address itself: nobody may answer there yet."""
        instance = self.process_context.static_instance(address)
        if instance is None or self.process_context.remote.connection is None:
            return
        if (
            await self.process_context.remote.connection.ready(READY)
            and await describe(self.process_context.transport, instance) is not None
        ):
            raise UserError(
                f"a static worker serves dyn://{address} already, on another node",
                "a static address is for one worker: choose another",
            )

    def withdraw(self, endpoint: str | None = None) -> None:
        """Take the component's instances (or one) out of the registry; streams that are open go on."""
        for name in [endpoint] if endpoint is not None else list(self._published):
            instance = self._published.pop(name, None)
            if instance is not None:
                self.process_context.registry.delete(card_key(instance))
                self.process_context.registry.delete(instance_key(instance))


def _difference(card: ModelCard, other: ModelCard) -> str:
    """How the other one serves it."""
    if other.kind != card.kind:
        return f"as {other.kind}"
    if other.context_length != card.context_length:
        lengths = f"{other.context_length} tokens, here {card.context_length}"
        return f"with another tokenizer or template, or another context length ({lengths})"
    return "with another tokenizer or template"


def _keep(cards: dict[str, ModelCard], key: str, value: bytes | None) -> None:
    if value is not None:
        cards[key] = msgspec.json.decode(value, type=ModelCard)


Component = Callable[[ComponentContext], Any]
"""How a component that is an actor is made."""
