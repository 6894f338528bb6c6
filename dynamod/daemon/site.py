"""What a component finds around it in its process: configuration, registry, post, and the other components there."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dynamod.actor import Ref, System
from dynamod.message.registry import Instance, ModelCard
from dynamod.message.worker import Request
from dynamod.post.base import Outbound, Sink
from dynamod.post.local_impl import LocalPost
from dynamod.post.unix_impl import Office, UnixPost
from dynamod.registry.keys import card_key, instance_key
from dynamod.registry.link_impl import LinkRegistry
from dynamod.registry.view import View

from .exchange import Exchange, Make
from .plan import HostPlan, ServicePlan


class Mail:
    """The post of a process: picks the transport that reaches an instance."""

    def __init__(self, office: str, local: LocalPost, unix: UnixPost) -> None:
        self._office, self._local, self._unix = office, local, unix

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """See post.base.Post."""
        if instance.transport.get("unix") == self._office:
            return self._local.open(instance, request, sink)
        return self._unix.open(instance, request, sink)

    async def close(self) -> None:
        """See post.base.Post."""
        await self._unix.close()


@dataclass(slots=True, eq=False)
class Surroundings:
    """Shared by all components of a process."""

    plan: HostPlan
    system: System
    registry: LinkRegistry
    exchange: Exchange
    office: Office
    unix: UnixPost
    mail: Mail
    fds: Sequence[int] = ()
    components: dict[str, Ref] = field(default_factory=dict[str, Ref])
    _view: View | None = None

    @property
    def view(self) -> View:
        """Live instances and models, watched from the first use on."""
        if self._view is None:
            # an instance that leaves the registry may be draining: its open streams go on until the socket closes,
            # which the kernel does at once when the process dies
            self._view = View(self.registry)
        return self._view


class Site:
    """One component's place in its process."""

    def __init__(self, around: Surroundings, service: ServicePlan) -> None:
        self.around = around
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
        return socket.socket(fileno=self.around.fds[self.service.sockets["http"]])

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
            self.around.exchange.add(self.path(endpoint), ref)
        else:
            self.around.exchange.add(self.path(endpoint), ref, make)

    def publish(self, endpoint: str, card: ModelCard | None = None) -> Instance:
        """Put the instance (and its model card) into the registry. The lease must have been granted."""
        around = self.around
        instance = Instance(
            namespace=self.namespace,
            component=self.component,
            endpoint=endpoint,
            instance_id=around.registry.lease,
            transport={"unix": around.office.path},
            node=around.registry.node,
            pid=os.getpid(),
            process=around.plan.name,
        )
        around.registry.put(instance_key(instance), msgspec.json.encode(instance))
        if card is not None:
            around.registry.put(card_key(instance), msgspec.json.encode(card))
        self._published[endpoint] = instance
        return instance

    def withdraw(self, endpoint: str | None = None) -> None:
        """Take the component's instances (or one) out of the registry; streams that are open go on."""
        for name in [endpoint] if endpoint is not None else list(self._published):
            instance = self._published.pop(name, None)
            if instance is not None:
                self.around.registry.delete(card_key(instance))
                self.around.registry.delete(instance_key(instance))

    def neighbour(self, name: str) -> Ref | None:
        """Another component of this process."""
        return self.around.components.get(name)


Component = Callable[[Site], Any]
"""How a component that is an actor is made."""
