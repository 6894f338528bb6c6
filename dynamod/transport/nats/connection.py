"""The one connection of a process to NATS, kept forever. Links send and receive through it.

    publish() ─► queue ─► nats-py ─► NATS ─► nats-py ─► the link at the address

A cut shorter than `patience` costs nothing but what was on its way, which the links' numbers show; a longer one fails
every link, and until NATS is back `publish` drops and `accepting` is False, so that nothing old is sent later. nats-py
makes lost connections again on its own. What it does not see (a server that holds the connection but does nothing, a
close that never ends) shows by a message to ourselves that does not come back: then the client is replaced.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import astuple
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.transport.base import Spawn
from dynamod.transport.waiting import comes

from . import client as nats_client
from . import wire as nats_wire
from .session import Keeper, stop_if_cancelled
from .settings import NatsSettings
from .traffic import Links, Pulse, Queue, Traffic

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger("dynamod.transport")

ROOM = 256 * 1024
"""Bytes of body in one message: a large payload must not delay all other streams."""

HIGH, LOW = 4 * 1024 * 1024, 1024 * 1024
"""Bytes in the queue at which links hold back, and continue."""

HOLD = 0.5
"""Seconds without sending after NATS is back: a message fails the link where the other end has not subscribed again."""


class NatsStatistics(msgspec.Struct, frozen=True):
    """State of the connection and counts since the process started."""

    server: str
    connected: Annotated[bool, Meta(description="1: connected to a server.")]
    connects: Annotated[Total, Meta(description="Connections that were made.")]
    links: Annotated[int, Meta(description="Links over the connection.")]
    queued: Annotated[int, Meta(description="Messages that wait to be sent.")]
    queued_bytes: Annotated[int, Meta(description="Bytes that wait to be sent.")]
    half_bytes: Annotated[int, Meta(description="Bytes of messages that have come in part.")]
    sent: Annotated[Total, Meta(description="Messages that were sent.")]
    received: Annotated[Total, Meta(description="Messages that were received.")]
    dropped: Annotated[Total, Meta(description="Messages that were dropped.")]
    slow: Annotated[Total, Meta(description="Messages that NATS dropped because this process reads too slowly.")]


Handler = Callable[[bytes, str], None]
"""Takes a message and the address that answers go to."""


class NatsConnection:
    """See the module. `name` is shown by NATS."""

    def __init__(self, settings: NatsSettings, spawn: Spawn, name: str = "dynamod") -> None:
        self.settings = settings
        self.accepting = True
        self.room = ROOM
        self.halves = nats_wire.Budget(settings.half_bytes)
        self._spawn = spawn
        self.links, self._queue, self._traffic = Links(), Queue(), Traffic()
        self._pulse = Pulse(f"{self.links.inbox}.pulse", HOLD)
        self._started = False
        self.blocked = False  # links should hold back what can wait
        self.keeper = Keeper(settings, name, self)
        self.flowing = False  # messages are sent now
        self._patience: asyncio.TimerHandle | None = None
        self._closing = False

    # Life.

    def start(self) -> None:
        """Begin to connect; does not wait for it. Raises UserError for TLS files of no use."""
        if self.settings.tls:
            self.settings.tls_context()
        self._started = True
        self.went_down()
        self._spawn(self._run(), "nats connection")
        self._spawn(self._tick_on(), "nats clock")

    async def ready(self, timeout: float) -> bool:
        """Wait for the first connection, at most `timeout` seconds; whether it is there."""
        return await comes(self.keeper.up, timeout)

    async def close(self) -> None:
        """Send what waits, if NATS takes it within a second, and end the connection."""
        if self._closing:
            return
        self._closing = True
        client = self.keeper.client
        try:
            async with asyncio.timeout(1.0):
                while self._queue.messages and self.connected:  # noqa: ASYNC110 - only at the end
                    await asyncio.sleep(0.005)
                if client is not None and client.is_connected:
                    await nats_client.settle(client, 1.0)
        except Exception as error:
            log.debug("the last messages may not have left: %s", error)
        self.accepting = False
        if self._started:
            await self.keeper.stop()
        self._drop_all("this process is stopping")

    @property
    def connected(self) -> bool:
        """Whether NATS is there now."""
        return self.keeper.up.is_set()

    def statistics(self) -> NatsStatistics:
        """A snapshot."""
        return NatsStatistics(
            self.keeper.server,
            self.connected,
            self.keeper.connects,
            len(self.links.ends),
            len(self._queue.messages),
            self._queue.bytes,
            self.halves.used,
            *astuple(self._traffic),
        )

    # Links.

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Receive at `subject`, in every session from now on. When NATS is there, it knows of it on return."""

        async def arrived(message: "Msg") -> None:
            self._traffic.received += 1
            handler(message.data, message.reply)

        await self.keeper.subscribe(subject, arrived)

    def publish(self, subject: str, message: bytes, reply: str) -> None:
        """Send, in order, as soon as NATS takes it. `reply` is the address of the link that sends."""
        if not self.accepting:
            self._traffic.dropped += 1
            return
        self._queue.put(subject, message, reply)
        if self._queue.bytes > HIGH and not self.blocked:
            self._block(True)
        if self._queue.bytes > self.settings.queue_bytes:
            asyncio.get_running_loop().call_soon(self._overflow)
        self._queue.wake.set()

    async def _run(self) -> None:
        await self.keeper.subscribe(f"{self.links.inbox}.*", self._arrived)
        await self.keeper.run()

    # What the keeper says.

    async def write(self, client: "Client") -> None:
        """Send what waits (called by the keeper)."""
        while True:
            await self._queue.wake.wait()
            self._queue.wake.clear()
            while self._queue.messages and self.flowing:
                subject, message, reply = self._queue.first()
                self._traffic.sent += 1
                try:
                    await client.publish(subject, message, reply)
                except Exception as error:
                    self._traffic.dropped += 1
                    if (link := self.links.ends.get(reply)) is not None:
                        link.fail(f"NATS does not take messages for {subject}: {nats_client.plain(error)}")
                if self._queue.bytes < LOW and self.blocked:
                    self._block(False)
                stop_if_cancelled()

    # What happens to it.

    async def _arrived(self, message: "Msg") -> None:
        self._traffic.received += 1
        subject = message.subject
        if subject == self._pulse.address:
            self._pulse.waiting = False
            return
        link = self.links.ends.get(subject)
        headers = message.headers
        if headers is not None and headers.get("Status") == "503":
            if link is not None:
                link.fail("the messages have no receiver: the process is gone", tell=False, gone=True)
        elif link is not None:
            link.take(message.data)
        elif message.reply:
            refuse(self, message.data, message.reply, "the reader has left")

    def slow(self, subject: str, reply: str) -> None:
        """NATS has dropped messages because we read too slowly."""
        self._traffic.slow += 1
        link = self.links.ends.get(subject)
        if link is not None:
            log.error("NATS messages were dropped: this process reads too slowly; the streams of that link are lost")
            link.fail("the connection lost frames: the reader is too slow")
        else:
            # the next message of that link, or its next sign of life, shows what is missing
            log.error("NATS messages from %s were dropped: this process reads too slowly", reply)

    def went_down(self) -> None:
        """The connection is lost; the keeper tries again."""
        self.flowing = False
        if self._pulse.hold is not None:
            self._pulse.hold.cancel()
            self._pulse.hold = None
        self._pulse.reset()
        self._block(True)
        if self._patience is None and self.accepting:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(self.settings.patience, self._give_up)

    def came_up(self, client: "Client") -> None:
        """The connection is there (again)."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self.accepting = not self._closing
        self.room = max(1, min(ROOM, client.max_payload - nats_wire.HEADER.size))
        self._pulse.reset()
        if self.keeper.connects > 1:
            self._pulse.hold = asyncio.get_running_loop().call_later(self._pulse.hold_for, self._flow)
            self._pulse.hold_for = HOLD
        else:
            self._flow()

    def _flow(self) -> None:
        self._pulse.hold = None
        self.flowing = True
        if self._queue.bytes < HIGH:
            self._block(False)
        self._queue.wake.set()

    def _give_up(self) -> None:
        self._patience = None
        self.accepting = False
        self._drop_all(f"no connection to NATS at {self.keeper.servers}")

    def _overflow(self) -> None:
        if self._queue.bytes > self.settings.queue_bytes:
            self._drop_all(f"NATS at {self.keeper.servers} takes messages too slowly: {self._queue.bytes} bytes wait")

    def _drop_all(self, why: str) -> None:
        """Nothing old may be sent later: every link begins anew."""
        self._traffic.dropped += self._queue.clear()
        if self.links.ends:
            log.warning("%s; the streams over it are lost", why)
        for link in list(self.links.ends.values()):
            link.fail(why, tell=False)
        if self.flowing:
            self._block(False)

    def _block(self, blocked: bool) -> None:
        if blocked != self.blocked:
            self.blocked = blocked
            for link in list(self.links.ends.values()):
                link.block(blocked)

    async def _tick_on(self) -> None:
        """Check the client and the links. Counted in ticks: a loop that was held up does not blame NATS for it."""
        while not self._closing and not await comes(self.keeper.stopped, self.settings.alive):
            if not self.connected:
                self.keeper.look()
            elif not self.flowing:
                pass
            elif not self._pulse.waiting:
                self._pulse.mute = 0
                self._pulse.waiting = True
                self._queue.messages.appendleft((self._pulse.address, b"", ""))
                self._queue.wake.set()
            else:
                self._pulse.mute += 1
                if self._pulse.mute * self.settings.alive >= self.settings.silence:
                    self._pulse.hold_for = HOLD + self.settings.alive
                    self.keeper.went_down()
                    self.keeper.leave_server()
            for link in list(self.links.ends.values()):
                link.tick()


def refuse(connection: NatsConnection, message: bytes, reply: str, why: str) -> None:
    """Answer a message of a link that is unknown here; END is not answered."""
    try:
        kind, _, _ = nats_wire.header(message)
    except nats_wire.WireError as error:
        log.warning("NATS: refused a message: %s", error)
        return
    if kind != nats_wire.END:
        connection.publish(reply, nats_wire.end(why), "")
