"""One end of a link over NATS: numbers, signs of life, and the one way to fail."""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.transport.framing import FrameError

from . import wire as nats_wire
from .connection import NatsConnection

log = logging.getLogger("dynamod.transport")


class LinkStatistics(msgspec.Struct, frozen=True):
    """One end of a link: messages sent and received, doubled ones dropped, ticks without a sign of life, streams."""

    peer: str
    sent: Annotated[Total, Meta(description="Messages that were sent.")]
    received: Annotated[Total, Meta(description="Messages that were received.")]
    doubled: Annotated[Total, Meta(description="Messages that came twice; the second was dropped.")]
    silent: Annotated[int, Meta(description="Ticks without a sign of life of the peer.")]
    streams: Annotated[int, Meta(description="Open streams.")]


class LinkEnd(ABC):
    """What both ends of a link share. `peer` is the subject that the other end receives at.

    `links`: the open links of a server or a transport, by peer.
    """

    def __init__(self, connection: NatsConnection, peer: str, links: MutableMapping[str, Any]) -> None:
        settings = connection.settings
        self.peer = peer
        self.address = connection.links.address(self)
        self.dead = False
        self._connection, self._links = connection, links
        links[peer] = self
        self._sender = nats_wire.Sender()
        self._receiver = nats_wire.Receiver(connection.halves)
        self._heard = True
        self._silent = self._idle = 0
        self._silent_limit = math.ceil(settings.silence / settings.alive)
        self._idle_limit = math.ceil(settings.idle / settings.alive)

    @property
    @abstractmethod
    def streams(self) -> int:
        """Streams open now."""

    @abstractmethod
    def deliver(self, payload: bytes) -> None:
        """Take a whole payload. Raises MsgspecError for what is none."""

    @abstractmethod
    def ended(self, why: str, *, gone: bool) -> None:
        """The link is dead: so are its streams. `gone`: the process at the other end is known to be gone."""

    def block(self, blocked: bool) -> None:  # noqa: B027 - one of the two ends has nothing to do
        """NATS takes nothing now, or takes more again."""

    @property
    def busy(self) -> bool:
        """Whether anything is owed to or by the other end."""
        return self.streams > 0

    def send(self, payload: bytes) -> None:
        """Send a payload, in pieces if it is large."""
        if self.dead:
            return
        try:
            messages = self._sender.cut(payload, self._connection.room)
        except FrameError as error:
            asyncio.get_running_loop().call_soon(self.fail, str(error))
            return
        for message in messages:
            self._connection.publish(self.peer, message, self.address)

    def take(self, message: bytes) -> None:
        """One message of the peer."""
        if self.dead:
            return
        self._heard = True
        receiver = self._receiver
        try:
            payload = receiver.take(message)
            if payload is not None:
                self.deliver(payload)
        except nats_wire.PeerEndedError as error:
            self.fail(str(error), tell=False)
        except nats_wire.WireError as error:
            self.fail(str(error))
        except msgspec.MsgspecError as error:
            self.fail(f"corrupt frame: {error}")
        if receiver.asked:
            receiver.asked = False
            if not self.busy and not self.dead:  # a busy link gives signs of life anyway
                self._connection.publish(self.peer, self._sender.alive(nats_wire.ECHO), self.address)

    def fail(self, why: str, *, tell: bool = True, gone: bool = False) -> None:
        """End the link and its streams; `tell` the other end too, if messages still go there. `gone`: see `ended`."""
        if self.dead:
            return
        self.dead = True
        if tell and self._connection.accepting:
            self._connection.publish(self.peer, nats_wire.end(why), self.address)
        self._connection.links.release(self.address)
        self._receiver.drop()
        if self._links.get(self.peer) is self:
            del self._links[self.peer]
        if self.streams:
            # at an address that never answered this was perhaps only the question whether a process is there
            level = logging.WARNING if tell or self._receiver.sequence else logging.DEBUG
            log.log(level, "link with %s: %s; %d streams are lost", self.peer, why, self.streams)
        self.ended(why, gone=gone)

    def tick(self) -> None:
        """Once per `alive` seconds: a sign of life while streams are open, and a look at the other end's."""
        if not self.busy:
            self._silent = 0
            self._idle = 0 if self._heard else self._idle + 1
            self._heard = False
            if self._idle > self._idle_limit:
                self.fail("the link was not used for long")
            return
        if not self._connection.flowing:
            return  # not the other end's fault; the connection has a limit of its own
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent > self._silent_limit:
            self.fail(f"nothing has come from the other end for {self._connection.settings.silence:g} s")
        else:
            self._connection.publish(self.peer, self._sender.alive(), self.address)

    def link_statistics(self) -> LinkStatistics:
        """A snapshot."""
        sent, receiver = self._sender.sequence, self._receiver
        return LinkStatistics(self.peer, sent, receiver.sequence, receiver.doubled, self._silent, self.streams)
