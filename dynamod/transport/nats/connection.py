"""The one connection of a process to NATS, kept for ever. Links send and receive through it.

    publish() ─► queue ─► nats-py ─► NATS ─► nats-py ─► the link at the address

A cut shorter than `patience` costs nothing but what was on its way, which the links' numbers show; a longer one fails
every link, and until NATS is back `publish` drops and `accepting` is False, so that nothing old is sent later. nats-py
makes lost connections again by itself. What it does not see (a server that holds the connection but does nothing, a
close that never ends) shows by a message to ourselves that does not come back: then the client is replaced.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dynamod.actor import Total
from dynamod.transport.base import Spawn
from dynamod.transport.waiting import comes

from . import client as nats_client
from . import wire as nats_wire
from .session import Keeper, stop_if_cancelled
from .settings import NatsSettings

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from .link import LinkEnd

log = logging.getLogger("dynamod.transport")

ROOM = 256 * 1024
"""Bytes of body in one message: a large payload must not delay all other streams."""

HIGH, LOW = 4 * 1024 * 1024, 1024 * 1024
"""Bytes in the queue at which links hold back, and go on."""

HOLD = 0.5
"""Seconds without sending after NATS is back: a message fails the link where the other end has not subscribed again."""


class NatsStatistics(msgspec.Struct, frozen=True):
    """State of the connection and counts since the process started."""

    server: str
    connected: bool
    connects: Total
    links: int
    queued: int
    queued_bytes: int
    half_bytes: int
    sent: Total
    received: Total
    dropped: Total
    slow: Total


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
        self._inbox = f"_INBOX.dynamod-{secrets.token_hex(8)}"
        self._pulse = f"{self._inbox}.pulse"
        self._links: dict[str, LinkEnd] = {}
        self._numbers = 0
        self._queue: deque[tuple[str, bytes, str]] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._started = False
        self.blocked = False  # links should hold back what can wait
        self._keeper = Keeper(settings, name, self)
        self.unsubscribe = self._keeper.unsubscribe
        self.servers = self._keeper.servers
        self.flowing = False  # messages are sent now
        self._patience: asyncio.TimerHandle | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._hold_for = HOLD  # longer when a server forwards nothing: its other users notice up to a tick later
        self._waiting = False  # for our own message to come back
        self._mute = 0  # ticks without it
        self._closing = False
        self._sent = self._received = self._dropped = self._slow = 0

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
        return await comes(self._keeper.up, timeout)

    async def close(self) -> None:
        """Send what waits, if NATS takes it within a second, and end the connection."""
        if self._closing:
            return
        self._closing = True
        client = self._keeper.client
        try:
            async with asyncio.timeout(1.0):
                while self._queue and self.connected:  # noqa: ASYNC110 - only at the end
                    await asyncio.sleep(0.005)
                if client is not None and client.is_connected:
                    await nats_client.settle(client, 1.0)
        except Exception as error:
            log.debug("the last messages may not have left: %s", error)
        self.accepting = False
        if self._started:
            await self._keeper.stop()
        self._drop_all("this process is stopping")

    @property
    def connected(self) -> bool:
        """Whether NATS is there now."""
        return self._keeper.up.is_set()

    def statistics(self) -> NatsStatistics:
        """A snapshot."""
        return NatsStatistics(
            self._keeper.server,
            self.connected,
            self._keeper.connects,
            len(self._links),
            len(self._queue),
            self._queued,
            self.halves.used,
            self._sent,
            self._received,
            self._dropped,
            self._slow,
        )

    # Links.

    def address(self, link: "LinkEnd") -> str:
        """A new address at which `link` receives. Never used twice, so it stands for this link alone."""
        self._numbers += 1
        address = f"{self._inbox}.{self._numbers:x}"
        self._links[address] = link
        return address

    def release(self, address: str) -> None:
        """The address has no owner any more; frames that still come there are answered with END."""
        self._links.pop(address, None)

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Receive at `subject`, in every session from now on. When NATS is there, it knows of it on return."""

        async def arrived(message: "Msg") -> None:
            self._received += 1
            handler(message.data, message.reply)

        await self._keeper.subscribe(subject, arrived)

    def publish(self, subject: str, message: bytes, reply: str) -> None:
        """Send, in order, as soon as NATS takes it. `reply` is the address of the link that sends."""
        if not self.accepting:
            self._dropped += 1
            return
        self._queue.append((subject, message, reply))
        self._queued += len(message)
        if self._queued > HIGH and not self.blocked:
            self._block(True)
        if self._queued > self.settings.queue_bytes:
            asyncio.get_running_loop().call_soon(self._overflow)
        self._wake.set()

    async def _run(self) -> None:
        await self._keeper.subscribe(f"{self._inbox}.*", self._arrived)
        await self._keeper.run()

    # What the keeper says.

    async def write(self, client: "Client") -> None:
        """Send what waits (called by the keeper)."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self.flowing:
                subject, message, reply = self._queue.popleft()
                self._queued -= len(message)
                self._sent += 1
                try:
                    await client.publish(subject, message, reply)
                except Exception as error:
                    self._dropped += 1
                    if (link := self._links.get(reply)) is not None:
                        link.fail(f"NATS does not take messages for {subject}: {nats_client.plain(error)}")
                if self._queued < LOW and self.blocked:
                    self._block(False)
                stop_if_cancelled()

    # What happens to it.

    async def _arrived(self, message: "Msg") -> None:
        self._received += 1
        subject = message.subject
        if subject == self._pulse:
            self._waiting = False
            return
        link = self._links.get(subject)
        headers = message.headers
        if headers is not None and headers.get("Status") == "503":
            if link is not None:
                link.fail("the messages have no receiver: the process is gone", tell=False, gone=True)
        elif link is not None:
            link.take(message.data)
        elif message.reply:
            self.refuse(message.data, message.reply, "the reader has left")

    def refuse(self, message: bytes, reply: str, why: str) -> None:
        """Answer a message of a link that is unknown here; END is not answered."""
        try:
            kind, _, _ = nats_wire.header(message)
        except nats_wire.WireError as error:
            log.warning("NATS: refused a message: %s", error)
            return
        if kind != nats_wire.END:
            self.publish(reply, nats_wire.end(why), "")

    def slow(self, subject: str, reply: str) -> None:
        """NATS has dropped messages because we read too slowly."""
        self._slow += 1
        link = self._links.get(subject)
        if link is not None:
            log.error("NATS messages were dropped: this process reads too slowly; the streams of that link are lost")
            link.fail("the connection lost frames: the reader is too slow")
        else:
            # the next message of that link, or its next sign of life, shows what is missing
            log.error("NATS messages from %s were dropped: this process reads too slowly", reply)

    def went_down(self) -> None:
        """The connection is lost; the keeper tries again."""
        self.flowing = False
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        self._waiting, self._mute = False, 0
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
        self._waiting, self._mute = False, 0
        if self._keeper.connects > 1:
            self._hold = asyncio.get_running_loop().call_later(self._hold_for, self._flow)
            self._hold_for = HOLD
        else:
            self._flow()

    def _flow(self) -> None:
        self._hold = None
        self.flowing = True
        if self._queued < HIGH:
            self._block(False)
        self._wake.set()

    def _give_up(self) -> None:
        self._patience = None
        self.accepting = False
        self._drop_all(f"no connection to NATS at {self.servers}")

    def _overflow(self) -> None:
        if self._queued > self.settings.queue_bytes:
            self._drop_all(f"NATS at {self.servers} takes messages too slowly: {self._queued} bytes wait")

    def _drop_all(self, why: str) -> None:
        """Nothing old may be sent later: every link begins anew."""
        self._dropped += len(self._queue)
        self._queue.clear()
        self._queued = 0
        if self._links:
            log.warning("%s; the streams over it are lost", why)
        for link in list(self._links.values()):
            link.fail(why, tell=False)
        if self.flowing:
            self._block(False)

    def _block(self, blocked: bool) -> None:
        if blocked != self.blocked:
            self.blocked = blocked
            for link in list(self._links.values()):
                link.block(blocked)

    async def _tick_on(self) -> None:
        while not self._closing and not await comes(self._keeper.stopped, self.settings.alive):
            self._check()
            for link in list(self._links.values()):
                link.tick()

    def _check(self) -> None:
        """Whether the client still works. Counted in ticks: a loop that was held up does not blame NATS for it."""
        if not self.connected:
            self._keeper.look()
        elif not self.flowing:
            pass
        elif not self._waiting:
            self._mute = 0
            self._waiting = True
            self._queue.appendleft((self._pulse, b"", ""))
            self._wake.set()
        else:
            self._mute += 1
            if self._mute * self.settings.alive >= self.settings.silence:
                self._hold_for = HOLD + self.settings.alive
                self._keeper.went_down()
                self._keeper.leave_server()
