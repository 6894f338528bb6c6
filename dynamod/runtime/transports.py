"""The transports of a process: local, unix, and between nodes TCP or NATS, from the moment the daemon says so."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from dynamod.discovery.keys import lease_of
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError
from dynamod.message.node import Said, Welcome
from dynamod.message.worker import Request
from dynamod.transport.base import Outbound, Receive, Sink, Spawn
from dynamod.transport.local import LocalTransport
from dynamod.transport.signing import Signing
from dynamod.transport.tls import PeerTls
from dynamod.transport.unix import UnixTransport

if TYPE_CHECKING:
    from dynamod.transport.nats.connection import NatsConnection
    from dynamod.transport.nats.transport import NatsServer, NatsTransport
    from dynamod.transport.tcp import TcpPeers

log = logging.getLogger("dynamod.daemon")

READY = 2.0
"""Seconds that a worker waits for NATS before it is announced without: it can be reached as soon as NATS is there."""


class _Nowhere:
    def cancel(self) -> None:
        pass

    def confirm(self) -> None:
        pass


class TransportSelector:
    """Picks the transport that reaches an instance, and takes requests of other nodes.

    `server`: where this process takes requests of its node; `receive` gets all requests. `connection`, `nats`: to other
    nodes, None when there are none. `tcp`: the same without a broker. `servers`: what takes requests of other nodes, by
    subject. `signing`: of what is said to other nodes; given by a daemon, whose unix sockets lead to other daemons,
    else as the daemon says. `tls`: of connections to other nodes that features make.
    """

    def __init__(
        self, name: str, server: str, receive: Receive, spawn: Spawn, *, signing: Signing | None = None
    ) -> None:
        self._name, self._server, self._receive, self._spawn = name, server, receive, spawn
        self._local = LocalTransport(receive)
        self._subjects: dict[int, str] = {}  # of instances on other nodes that were sent to
        self.node = ""
        self.signing, self._said = signing or Signing(), None if signing is not None else dict[str, Any]()
        self.unix = UnixTransport(spawn, signing)
        self.connection: NatsConnection | None = None
        self.nats: NatsTransport | None = None
        self.tcp: TcpPeers | None = None
        self.servers: dict[str, NatsServer] = {}
        self.tls: PeerTls | None = None

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is reported by `sink.lost`."""
        path = instance.transport.get("unix", "")
        if path == self._server:
            return self._local.open(instance, request, sink)
        subject, over_tcp = instance.transport.get("nats"), "tcp" in instance.transport
        if (subject is None and not over_tcp) or (instance.node == self.node and self.unix.reaches(path)):
            return self.unix.open(instance, request, sink)
        if over_tcp and self.tcp is not None:
            return self.tcp.open(instance, request, sink)
        if subject is None or self.nats is None:
            ways = " or ".join(name for name, there in (("TCP", over_tcp), ("NATS", subject)) if there)
            asyncio.get_running_loop().call_soon(sink.lost, f"node {instance.node} is only reached over {ways}")
            return _Nowhere()
        self._subjects[instance.instance_id] = subject
        return self.nats.open(instance, request, sink)

    def exited(self, key: str, value: bytes | None) -> None:
        """A process of another node is gone, which NATS reports later."""
        lease = lease_of(key)
        if value is not None and self.nats is not None and lease is not None:
            subject = self._subjects.pop(lease, None)
            if subject is not None:
                self.nats.forget(subject)

    def welcome(self, message: Welcome) -> None:
        """The daemon has said how other nodes are reached; what a later daemon says changes nothing any more.

        How requests are signed it may say again.
        """
        self.node = message.node
        if self._said is not None and message.said != self._said:
            self._said = dict(message.said)
            self._sign()
        if self.tcp is None and message.cluster:
            self._begin_tcp(message)
        if self.connection is not None or not message.cluster:
            return
        from dynamod.transport.nats.connection import NatsConnection
        from dynamod.transport.nats.settings import NatsSettings
        from dynamod.transport.nats.transport import NatsTransport

        try:
            self.tls = PeerTls.from_environment(message.cluster)
            settings = NatsSettings.from_environment(message.cluster)
            if settings is None:
                return
            connection = NatsConnection(settings, self._spawn, self._name)
            connection.start()
        except UserError as error:
            log.error("other nodes cannot be reached: %s", error.line())
            return
        self.connection, self.nats = connection, NatsTransport(connection, self.signing)

    def _begin_tcp(self, message: Welcome) -> None:
        from dynamod.transport.tcp_settings import TcpSettings

        try:
            settings = TcpSettings.from_environment(message.cluster)
            if settings is not None:
                from dynamod.transport.tcp import TcpPeers

                self.tcp = TcpPeers(settings, self._spawn, self._receive, self.signing)
        except UserError as error:
            log.error("other nodes cannot be reached over TCP: %s", error.line())

    def told(self, message: Said) -> None:
        """A feature of the daemon says something else from now on."""
        if self._said is not None:
            self._said[message.feature] = message.value
            self._sign()

    def _sign(self) -> None:
        from dynamod.extension.installed import signer

        try:
            self.signing.use(signer(self._said or {}, self.signing.signer))
        except UserError as error:
            log.error("nothing is signed: %s", error.line())

    async def serve(self, subject: str) -> str:
        """Take requests of other nodes at a subject; returns it, or nothing when this node is alone."""
        if self.connection is None:
            return ""
        if subject not in self.servers:
            from dynamod.transport.nats.transport import NatsServer

            server = self.servers[subject] = NatsServer(self.connection, subject, self._receive, self.signing)
            try:
                async with asyncio.timeout(READY):
                    await server.start()
            except TimeoutError:
                log.warning("NATS is slow to take the subscription to %s", subject)
            if not await self.connection.ready(READY):
                log.warning("NATS does not answer yet; other nodes reach this worker when it does")
        return subject

    async def close(self) -> None:
        """Close all connections."""
        for transport in (self.unix, self.tcp, self.nats, *self.servers.values(), self.connection):
            if transport is not None:
                await transport.close()
