"""The transport between nodes: each worker process receives at one subject of NATS, each pair of processes has a link.

An ingress sends to the worker's subject with the link's address as reply; the worker answers there, with an address of
its own as reply. So NATS reports to both ends at once when a subject has no receiver ("no responders"). What NATS does
not report shows by sequence numbers and signs of life, see `wire`: while streams are open each end gives one every
`alive` seconds, and a link that is busy and receives nothing for `silence` seconds fails. A link that fails ends its
streams on both sides; the next request begins a new one.
"""

import asyncio
import logging
import re
from functools import partial

from dynamod.message.discovery import Instance
from dynamod.message.worker import Request
from dynamod.transport.base import Outbound, Receive, Sink
from dynamod.transport.inbox import Inbox, InboxStatistics, InboxStream
from dynamod.transport.outbox import Outbox, OutboxStatistics
from dynamod.transport.signing import RequestSigning, Signing

from . import wire as nats_wire
from .connection import NatsConnection, refuse
from .link import LinkEnd, LinkStatistics

log = logging.getLogger("dynamod.transport")


def instance_subject(namespace: str, component: str, endpoint: str, instance_id: int) -> str:
    """`{namespace}_{component}.{endpoint}-{lease hex}`, as NVIDIA Dynamo names it, with safe characters only."""
    return f"{_safe(namespace)}_{_safe(component)}.{_safe(endpoint)}-{instance_id:x}"


def _safe(name: str) -> str:
    """NATS gives a meaning to dots, stars, `>` and white space, and `$` begins its own subjects."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


class _WorkerLink(LinkEnd):
    """A worker's end of a link to one ingress process."""

    def __init__(
        self,
        connection: NatsConnection,
        peer: str,
        links: "dict[str, _WorkerLink]",
        receive: Receive,
        signing: RequestSigning,
    ) -> None:
        super().__init__(connection, peer, links)
        self._receive = receive
        self._idle_limit *= 2  # the ingress forgets first, so that it never sends on a link that is unknown here
        self.outbox = Outbox(self.send, signing)
        self.block(connection.blocked)

    @property
    def streams(self) -> int:
        return len(self.outbox.streams)

    @property
    def busy(self) -> bool:
        """Whether streams are open or frames wait."""
        return bool(self.outbox.streams) or self.outbox.statistics().waiting > 0

    def deliver(self, payload: bytes) -> None:
        self.outbox.take(payload, self._receive)

    def block(self, blocked: bool) -> None:
        self.outbox.block(blocked)

    def ended(self, why: str, *, gone: bool) -> None:
        self.outbox.close()


class NatsServer:
    """The worker side: receives at `subject` and hands each new stream to `receive`."""

    def __init__(
        self, connection: NatsConnection, subject: str, receive: Receive, signing: Signing | None = None
    ) -> None:
        self.subject = subject
        self.receive = receive
        self._connection, self._signing = connection, signing or Signing()
        self._links: dict[str, _WorkerLink] = {}  # by the ingress's address

    async def start(self) -> None:
        """Begin to receive; when NATS is not there yet, as soon as it is."""
        await self._connection.subscribe(self.subject, self._arrived)

    def _arrived(self, message: bytes, reply: str) -> None:
        link = self._links.get(reply)
        if link is None:
            link = self._new(message, reply)
            if link is None:
                return
        link.take(message)

    def _new(self, message: bytes, reply: str) -> _WorkerLink | None:
        """A link begins with its message 1; anything else is of a link that has ended here, or of a stranger."""
        try:
            kind, _, number = nats_wire.header(message)
        except nats_wire.WireError as error:
            log.warning("NATS: refused a message at %s: %s", self.subject, error)
            if reply:
                self._connection.publish(reply, nats_wire.end(str(error)), "")
            return None
        if reply and kind == nats_wire.DATA and number == 1:
            signing = RequestSigning(self._signing, self.subject, reply)
            return _WorkerLink(self._connection, reply, self._links, self.receive, signing)
        if reply:
            refuse(self._connection, message, reply, "the worker does not know this link (any more)")
        return None

    def statistics(self) -> list[OutboxStatistics]:
        """A snapshot of each destination."""
        return [link.outbox.statistics() for link in self._links.values()]

    def links(self) -> list[LinkStatistics]:
        """A snapshot of each link."""
        return [link.link_statistics() for link in self._links.values()]

    async def close(self) -> None:
        """Receive no more and end all links, which the ingresses notice at once."""
        await self._connection.keeper.unsubscribe(self.subject)
        for link in list(self._links.values()):
            link.fail("the worker is stopping")


class _IngressLink(LinkEnd):
    """An ingress's end of a link to one worker process."""

    def __init__(
        self, connection: NatsConnection, peer: str, links: "dict[str, _IngressLink]", signing: Signing
    ) -> None:
        super().__init__(connection, peer, links)
        self.inbox = Inbox(self.send, RequestSigning(signing, peer, self.address))

    @property
    def streams(self) -> int:
        return len(self.inbox)

    def deliver(self, payload: bytes) -> None:
        self.inbox.frame(payload)

    def ended(self, why: str, *, gone: bool) -> None:
        self.inbox.lost(why, link=not gone)


class NatsTransport:
    """The ingress side: a link to each worker process, made with the first request.

    Without a connection to NATS for longer than `patience` seconds a request is `lost` at once; within them it waits.
    """

    def __init__(self, connection: NatsConnection, signing: Signing | None = None) -> None:
        self._connection, self._signing = connection, signing or Signing()
        self._links: dict[str, _IngressLink] = {}

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance. Failure is reported by `sink.lost`."""
        subject = instance.transport["nats"]
        link = self._links.get(subject)
        if link is None:
            link = _IngressLink(self._connection, subject, self._links, self._signing)
        stream = InboxStream(link.inbox, link.inbox.open(instance.path, request, sink))
        if not self._connection.accepting:
            why = f"no connection to NATS at {self._connection.keeper.servers}"
            asyncio.get_running_loop().call_soon(partial(link.fail, why, tell=False))
        return stream

    def forget(self, subject: str) -> None:
        """The instance of `subject` is gone: end its link and with it every open sink, at once."""
        link = self._links.get(subject)
        if link is not None:
            link.fail("the worker is gone", gone=True)

    def statistics(self) -> dict[str, InboxStatistics]:
        """A snapshot of each link, by subject."""
        return {subject: link.inbox.statistics() for subject, link in self._links.items()}

    def links(self) -> list[LinkStatistics]:
        """A snapshot of each link."""
        return [link.link_statistics() for link in self._links.values()]

    async def close(self) -> None:
        """Close all connections."""
        for link in list(self._links.values()):
            link.fail("the reader has left")
