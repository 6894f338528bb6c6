"""Keeps a process connected to NATS: one client of nats-py at a time, its subscriptions, and what the log says."""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dynamod.transport.waiting import cancelled, comes

from . import client as nats_client
from .settings import NatsSettings

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from .connection import NatsConnection

log = logging.getLogger("dynamod.transport")

SAY_EVERY = 5.0
"""Seconds before the same line is logged again."""

ATTEMPT_LIMIT = 10.0
"""Seconds without any attempt to connect after which the client is taken for stuck."""


class Subscriptions:
    """The subjects that are wanted, and the subscriptions of the present client.

    `ready`: the client, once it has subscribed to everything.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self.ready: Client | None = None
        self._callbacks: dict[str, Callable[[Msg], Awaitable[None]]] = {}
        self._there: dict[str, Any] = {}

    def begin(self) -> None:
        """Another client: it has no subscriptions."""
        self._there = {}

    def wanting(self, subject: str, callback: "Callable[[Msg], Awaitable[None]]") -> "Client | None":
        """Want a subject. Returns the client that has to subscribe; a client that is not ready does so anyway."""
        self._callbacks[subject] = callback
        return self.ready if subject not in self._there else None

    def missing(self) -> list[str]:
        """Subjects without a subscription."""
        return [subject for subject in self._callbacks if subject not in self._there]

    async def add(self, client: "Client", subject: str) -> None:
        """Subscribe. Raises as nats-py."""
        self._there[subject] = await client.subscribe(
            subject,
            cb=self._callbacks[subject],
            pending_msgs_limit=self._settings.pending_messages,
            pending_bytes_limit=self._settings.pending_bytes,
        )

    def drop(self, subject: str) -> Any:
        """Want a subject no more. Returns the subscription, None where there is none."""
        self._callbacks.pop(subject, None)
        return self._there.pop(subject, None)


class Keeper:
    """Runs sessions forever. A session is one client; it ends when the client is of no use any more."""

    def __init__(self, settings: NatsSettings, name: str, owner: "NatsConnection") -> None:
        self.settings = settings
        self.servers = ", ".join(settings.servers)
        self._order = random.sample(settings.servers, len(settings.servers))  # in which they are tried
        self.client: Client | None = None
        self.up = asyncio.Event()
        self.stopped = asyncio.Event()
        self.connects = 0
        self._name = name
        self._owner = owner
        self._closing = self._refused = False
        self._subscriptions = Subscriptions(settings)
        self._session = asyncio.timeout(None)
        self._still = 0  # ticks without an attempt to connect
        self._said = ("", -math.inf)

    async def run(self) -> None:
        """Keep the connection until `stop`."""
        try:
            while not self._closing:
                client = self.client = nats_client.new_client()
                self._subscriptions.begin()
                self._still = 0
                try:
                    async with asyncio.timeout(None) as self._session:
                        await self._connect(client)
                        await self._owner.write(client)
                except TimeoutError:
                    pass  # end()
                except Exception as error:
                    self._say(f"NATS at {self.servers}: {nats_client.plain(error)}; trying on", logging.WARNING)
                    await asyncio.sleep(nats_client.RECONNECT_WAIT)
                finally:
                    self.went_down()
                    self.client = self._subscriptions.ready = None
                    await nats_client.discard(client)
        finally:
            self.stopped.set()

    def end(self) -> None:
        """End the session; the next one begins at once."""
        with contextlib.suppress(RuntimeError, AssertionError):  # not begun (Python 3.11: AssertionError), or ending
            self._session.reschedule(asyncio.get_running_loop().time())

    def leave_server(self) -> None:
        """End the session; the next one tries all other servers first, those too of which this one has told us."""
        if self.client is not None and (here := self.client.connected_url) is not None:
            known = [url.geturl() for url in self.client.servers]
            self._order = [url for url in known if url != here.geturl()] + [here.geturl()]
        self.end()

    async def stop(self) -> None:
        """End for good, within 3 s."""
        self._closing = True
        self.end()
        if not await comes(self.stopped, 3.0):
            log.warning("the connection to NATS did not close in time")

    def look(self) -> None:
        """Called every `alive` seconds: a client that has stopped to try is replaced."""
        if self.up.is_set():
            return
        self._still += 1
        if self._still * self.settings.alive > ATTEMPT_LIMIT:
            self._still = 0
            self.end()

    @property
    def server(self) -> str:
        """The server that is there now, or nothing."""
        url = self.client.connected_url if self.client is not None else None
        return f"{url.scheme}://{url.hostname}:{url.port}" if url is not None else ""

    # Subscriptions.

    async def subscribe(self, subject: str, callback: "Callable[[Msg], Awaitable[None]]") -> None:
        """Receive at `subject` in every session from now on. When NATS is there, it knows of it on return."""
        client = self._subscriptions.wanting(subject, callback)
        if client is not None:
            try:
                await self._subscriptions.add(client, subject)
                if self.up.is_set():
                    await nats_client.settle(client, self.settings.connect_timeout)
            except Exception as error:
                log.warning("NATS: cannot receive at %s: %s", subject, nats_client.plain(error))
                self.end()  # the next session subscribes again

    async def unsubscribe(self, subject: str) -> None:
        """Receive at `subject` no more."""
        subscription = self._subscriptions.drop(subject)
        if subscription is not None and self.client is not None and not self.client.is_closed:
            try:
                async with asyncio.timeout(1.0):
                    await subscription.unsubscribe()
            except Exception as error:
                log.debug("NATS: unsubscribe: %s", error)

    # The session.

    async def _connect(self, client: "Client") -> None:
        async def closed() -> None:
            if client is self.client and not self._closing:
                self.end()

        async def disconnected() -> None:
            if client is self.client:
                self.went_down()

        async def connected() -> None:
            if client is self.client and self.settings.tls and not nats_client.offers_tls(client):
                self.end()
            elif client is self.client:
                self._came_up(client)

        async def failed(error: Exception) -> None:
            if client is self.client:
                self._failed(client, error)

        await client.connect(
            **nats_client.options(self.settings, client, self._name, self._order),
            error_cb=failed,
            disconnected_cb=disconnected,
            reconnected_cb=connected,
            closed_cb=closed,
        )
        if self.settings.tls and not nats_client.offers_tls(client):
            raise ConnectionError("the server offers no TLS, and tls:// or NATS_TLS_... asks for it")
        while missing := self._subscriptions.missing():
            for subject in missing:
                await self._subscriptions.add(client, subject)
            await nats_client.settle(client, self.settings.connect_timeout)  # others may come meanwhile
        stop_if_cancelled()
        self._subscriptions.ready = client
        self._came_up(client)

    def _came_up(self, client: "Client") -> None:
        self.connects += 1
        self.up.set()
        self._said = ("", -math.inf)
        log.info("connected to NATS at %s%s", self.servers, " again" if self.connects > 1 else "")
        self._owner.came_up(client)

    def went_down(self) -> None:
        """The connection is of no use."""
        self.up.clear()
        self._owner.went_down()

    def _failed(self, client: "Client", error: Exception) -> None:
        self._still = 0
        subject = getattr(error, "subject", None)
        if subject is not None and hasattr(error, "sub"):  # nats.errors.SlowConsumerError
            self._owner.slow(subject, getattr(error, "reply", ""))
        elif nats_client.refuses_credentials(error):
            self._refused = True
            client.options["reconnect_time_wait"] = nats_client.REFUSED_WAIT
            self._say(f"NATS at {self.servers} {self._credentials()}", logging.ERROR)
        elif nats_client.distrusts(error):
            self._refused = True
            client.options["reconnect_time_wait"] = nats_client.REFUSED_WAIT
            check = "check NATS_TLS_CA, NATS_TLS_CERT and NATS_TLS_KEY"
            self._say(f"NATS at {self.servers} cannot be reached: {nats_client.plain(error)}; {check}", logging.ERROR)
        elif self.up.is_set():
            if not isinstance(error, (OSError, TimeoutError)):  # those are followed by a disconnect
                self._say(f"NATS at {self.servers}: {nats_client.plain(error)}", logging.WARNING)
        elif not (self._refused and nats_client.cut_off(error)):
            self._refused = False  # a server that has refused us cuts the connection, which says nothing new
            client.options["reconnect_time_wait"] = nats_client.RECONNECT_WAIT
            self._say(f"NATS at {self.servers} cannot be reached: {nats_client.plain(error)}; trying on")

    def _credentials(self) -> str:
        """What the server does not accept, and what to set."""
        if of := self.settings.credentials:
            return f"refuses the credentials of {of}"
        if self.settings.client_cert is not None:
            return "has no user for the certificate NATS_TLS_CERT: give that of a node, or set NATS_AUTH_USERNAME"
        return "wants credentials: set NATS_AUTH_USERNAME and others"

    def _say(self, line: str, level: int = logging.WARNING) -> None:
        """Log, but the same again only every few seconds."""
        now = asyncio.get_running_loop().time()
        said, at = self._said
        if line != said or now - at >= SAY_EVERY:
            self._said = (line, now)
            log.log(level, "%s", line)


def stop_if_cancelled() -> None:
    """nats-py swallows a cancel that reaches it while it waits for its flusher."""
    if cancelled():
        raise asyncio.CancelledError
