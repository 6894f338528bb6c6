"""The registry as a process of the node sees it: over its connection to the daemon.

When the daemon ends, a process that it started ends too. A user's file continues: its view stays, and once a daemon is
there again, it greets with the lease it had, puts its keys again and compares the new snapshot with what it knew. Keys
that are missing stay for `GRACE` seconds, because their owners have to come back too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason
from dynamod.message.errors import UserError
from dynamod.message.node import Changed, Delete, FromNode, Hello, Put, Refused, Snapshot, State, ToNode, Watch, Welcome
from dynamod.transport.channel import Channel, Handler
from dynamod.transport.waiting import comes

from .base import Watcher
from .watches import Watches

log = logging.getLogger("dynamod.discovery")

RETRY = 0.1
"""Seconds between attempts to reach a daemon that has gone."""
CONNECT = 2.0
"""Seconds for one attempt."""
LAST_STATE_S = 2.0
"""Seconds that a process which ends waits until it can say the last states of its components."""
GRACE = 3.0

Connect = Callable[[Callable[[], Channel]], Awaitable[Any]]
"""Makes one connection with the channel that it is given. Raises OSError."""


class LinkRegistry(Actor):
    """Keeps the connection to the daemon. `hello` is what the process says of itself.

    `take` gets messages that are not the registry's business, `welcomed` each greeting, `lost` the end of a connection.
    `keeps`: look for the next daemon when one has gone; else the first end is the last.
    """

    def __init__(
        self,
        hello: Hello,
        connect: Connect,
        *,
        take: Callable[[FromNode], None] = lambda _message: None,
        handler: Handler | None = None,
        welcomed: Callable[[Welcome], None] = lambda _welcome: None,
        lost: Callable[[str], None] = lambda _why: None,
        keeps: bool = False,
    ) -> None:
        self._hello, self._connect = hello, connect
        self._other, self._handler = take, handler
        self.welcomed, self._lost, self._keeps = [welcomed], lost, keeps
        self._own: dict[str, bytes] = {}
        self._watches = Watches(self._expire)
        self._unsent: dict[str, State] = {}
        self._channel: Channel | None = None
        self._closed = asyncio.Event()
        self._answered = asyncio.Event()  # welcomed; a process that does not look for another daemon also: refused
        self.connected = False  # greeted by the daemon of this connection
        self.node = ""

    async def started(self) -> None:
        """Begin to keep the connection; does not wait for it."""
        self.context.task(self._keep(), "keep connection")

    async def stopping(self, reason: Reason) -> None:
        """Close the connection: the daemon revokes the lease at once.

        A component that fails at once has its last state before the daemon has answered the greeting: it is sent first.
        """
        if self._unsent and not self._keeps:
            await comes(self._answered, LAST_STATE_S)
        if self._channel is not None:
            self._channel.close()

    # Registry.

    @property
    def lease(self) -> int:
        """Id of the process's lease; 0 until it is granted."""
        return self._hello.lease

    async def leased(self, timeout: float) -> int:
        """Wait for the lease. Raises TimeoutError, also when there will be none."""
        if not await comes(self._answered, timeout) or (self._closed.is_set() and not self._keeps):
            raise TimeoutError("the daemon gives no lease")
        return self._hello.lease

    def put(self, key: str, value: bytes) -> None:
        """Store under our lease, and again whenever a daemon comes."""
        self._own[key] = value
        self.send(Put(key, value))

    def delete(self, key: str) -> None:
        """Remove a key of ours."""
        if self._own.pop(key, None) is not None:
            self.send(Delete(key))

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call `watcher` with every key below `prefix` now and with each change."""
        self.send(Watch(self._watches.add(prefix, watcher), prefix))

    def send(self, message: ToNode) -> None:
        """Send a message if the daemon is there; the registry's own are repeated when it comes back.

        Of the states of a component the last one is sent when the daemon comes.
        """
        if self.connected and self._channel is not None:
            self._channel.send(message)
        elif isinstance(message, State):
            self._unsent[message.component] = message

    async def ask(self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
        """Ask the daemon. Raises as Channel.ask."""
        assert self._channel is not None, "wait for `leased` before"
        return await self._channel.ask(command, arguments, timeout=timeout)

    def inspection(self) -> dict[str, Any]:
        """Whether the connection is up, and what is held and watched."""
        return {
            "connected": self.connected,
            "lease": f"{self._hello.lease:x}",
            "own": sorted(self._own),
            "watches": self._watches.sizes(),
        }

    # The connection.

    async def _keep(self) -> None:
        while True:
            self._closed.clear()
            try:
                async with asyncio.timeout(CONNECT):
                    await self._connect(self._make)
            except (OSError, TimeoutError) as error:
                why = f"no daemon answers: {error or type(error).__name__}"
            except UserError as error:
                self._other(Refused(str(error), error.hint))
                why = str(error)
            else:
                await self._closed.wait()
                why = "the daemon has ended"
                if self._channel is not None and self._channel.fault:
                    why = f"what listens there is no daemon of this version: {self._channel.fault}"
                    self._other(Refused(why, "stop it, or choose another --socket"))
            if self.connected:
                self.connected = False
                log.debug("lost the daemon: %s", why)
            self._lost(why)
            if not self._keeps:
                return
            await asyncio.sleep(RETRY)

    def _make(self) -> Channel:
        self._channel = Channel(
            self._take, opened=self._greet, closed=self._over, handler=self._handler, spawn=self.context.task
        )
        return self._channel

    def _greet(self) -> None:
        assert self._channel is not None
        self._channel.send(self._hello)

    def _over(self) -> None:
        self._closed.set()
        if not self._keeps:
            self._answered.set()

    def _take(self, message: FromNode) -> None:
        match message:
            case Welcome(lease, node):
                self._hello, self.node = msgspec.structs.replace(self._hello, lease=lease), node
                self.connected = True
                for welcomed in self.welcomed:
                    welcomed(message)
                for key, value in self._own.items():
                    self.send(Put(key, value))
                for number, prefix in self._watches.prefixes():
                    self.send(Watch(number, prefix))
                for state in self._unsent.values():
                    self.send(state)
                self._unsent.clear()
                self._answered.set()
            case Snapshot(number, items):
                self._watches.compare(number, dict(items))
            case Changed(number, key, value):
                self._watches.change(number, key, value)
            case _:
                self._other(message)

    def _expire(self, number: int, missing: set[str]) -> None:
        self.context.task(self._after_grace(number, missing), "grace")

    async def _after_grace(self, number: int, missing: set[str]) -> None:
        await asyncio.sleep(GRACE)
        if self.connected:
            self._watches.expire(number, missing)
