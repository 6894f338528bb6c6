"""The simulated registry: a server with leases that time out, and the client that each process has.

The store is the real `discovery.memory`. A client behaves as `discovery.base` promises: what was put is put again
after an absence, under the same lease id where that is free; watchers keep the last known view, and keys that are
missing afterwards get GRACE seconds for their owners to come back too.
"""

import asyncio
import random as random_module
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from dynamod.discovery.base import Watcher
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.errors import DynamodError

from .events import Log
from .shape import LEASE_TTL
from .wire import TICK, Process

GRACE = 3.0
AGAIN = 0.2
"""Seconds until a client that lost the server has found it again, at the earliest; up to twice as long by chance."""

DELAY = 0.001
"""Seconds between the server and a client, up to twice as long by chance."""


class Ask(Protocol):
    """Asks the daemon. Raises as `transport.channel.Channel.ask`."""

    async def __call__(self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
        """The answer."""


async def _nobody(command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
    raise DynamodError(f"nobody answers {command}")


class Etcd:
    """The server. `reachable(node)`: whether a node's messages arrive now."""

    def __init__(self, log: Log, random: random_module.Random, reachable: Callable[[int], bool]) -> None:
        self.log, self.random, self._reachable = log, random, reachable
        self.loop = asyncio.get_running_loop()
        self.store = MemoryRegistry(random)
        self.leases: dict[int, SimulatedRegistry] = {}
        self.clients: list[SimulatedRegistry] = []
        self.up = True
        self.events = 0  # given to watchers

    def reaches(self, node: int) -> bool:
        """Whether a node and the server reach each other."""
        return self.up and self._reachable(node)

    def grant(self, client: "SimulatedRegistry", wanted: int) -> int:
        """A lease for a client; the old id where it is free."""
        lease = self.store.grant(wanted)
        self.leases[lease] = client
        return lease

    def revoke(self, lease: int, why: str) -> None:
        """End a lease; its keys go."""
        if self.leases.pop(lease, None) is not None:
            self.log("lease", f"{lease:x} {why}")
            self.store.revoke(lease)

    def away(self) -> None:
        """The server stops; what it holds stays, and no lease ends meanwhile."""
        self.up = False
        self.changed()

    def back(self) -> None:
        """It goes on: every lease has its whole time again."""
        self.up = True
        self.changed()
        for client in list(self.leases.values()):
            if not client.connected:
                client.renew()

    def wipe(self) -> None:
        """All data is gone; clients notice with their next message."""
        self.store = MemoryRegistry(self.random)
        self.leases.clear()
        for client in list(self.clients):
            client.drop()
        self.changed()

    def meddle(self, items: Iterable[tuple[str, bytes]]) -> Callable[[], None]:
        """Somebody else puts keys; call what is returned to take them away again."""
        store = self.store
        lease = store.grant()
        for key, value in items:
            store.put(key, value, lease)
        return partial(store.revoke, lease)

    def changed(self) -> None:
        """Ways have changed: clients lose or find the server."""
        for client in list(self.clients):
            client.look()


class SimulatedRegistry:
    """`discovery.base.Registry` for one simulated process."""

    def __init__(self, etcd: Etcd, process: Process) -> None:
        self._etcd, self._process = etcd, process
        self._own: dict[str, bytes] = {}
        self._gone: dict[str, None] = {}  # deleted here, and perhaps not yet there
        self._ended: dict[int, None] = {}  # leases of others that have ended here, and perhaps not yet there
        self._watchers: list[tuple[str, Watcher, dict[str, bytes]]] = []
        self._stops: list[Callable[[], None]] = []
        self._lease = 0
        self._granted = asyncio.Event()
        self.granted: Callable[[int], None] = lambda _lease: None  # called once, with the lease
        self._generation = 0  # of the connection: what an older one sent does not count
        self._due = 0.0
        self.connected = False
        self.orphan = False  # its daemon, which asks for leases, hears it no more: it gets no first lease
        self.dropped = 0.0  # when the connection was lost last
        self.node = f"n{process.node}"
        self.ask: Ask = _nobody  # the daemon; see `discovery.link.LinkRegistry`
        self._trying = False
        etcd.clients.append(self)
        self.look()

    # discovery.base.Registry.

    @property
    def lease(self) -> int:
        """The lease id, 0 before it is granted."""
        return self._lease if self._granted.is_set() else 0

    async def leased(self, timeout: float) -> int:
        """Wait for the lease. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._granted.wait()
        return self._lease

    def put(self, key: str, value: bytes) -> None:
        """Put a key under our lease, now and after each absence."""
        self._own[key] = value
        self._gone.pop(key, None)
        self._send(partial(self._put, key, value))

    def delete(self, key: str) -> None:
        """Delete a key of ours."""
        if self._own.pop(key, None) is not None:
            self._gone[key] = None
            self._send(partial(self._delete, key))

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call `watcher(key, value)` for everything under a prefix, now and when it changes."""
        entry = (prefix, watcher, dict[str, bytes]())
        self._watchers.append(entry)
        if self.connected:
            self._follow(entry)

    # What checks look at.

    @property
    def keys(self) -> list[str]:
        """The keys that the process has put."""
        return list(self._own)

    @property
    def owner(self) -> str:
        """The process's name."""
        return self._process.name

    def known(self, prefix: str) -> dict[str, bytes]:
        """The last known view of a watched prefix."""
        return {key: value for _, _, view in self._watchers for key, value in view.items() if key.startswith(prefix)}

    def publish(self, prefix: str, key: str, value: bytes | None) -> None:
        """Give the watchers of a prefix a change as if it came from the server, at once."""
        for entry in self._watchers:
            if entry[0] == prefix:
                self._change(entry, key, value)

    # The connection.

    def look(self) -> None:
        """Lose or find the server, as the ways are now."""
        there = self._etcd.reaches(self._process.node) and self._process.alive
        if self.connected and not there:
            self.drop()
            self.doubt()
        elif there and not self.connected and not self._trying:
            self._trying = True
            self._etcd.loop.call_later(AGAIN * (1 + self._etcd.random.random()) if self._lease else DELAY, self._greet)

    def drop(self) -> None:
        """The connection is gone."""
        self.connected = False
        self.dropped = self._etcd.loop.time()
        self._generation += 1
        self._stop_watching()

    def doubt(self) -> None:
        """The server gets nothing from us: the lease ends unless we are back in time."""
        left = LEASE_TTL * (1 - self._etcd.random.random() / 3)
        self._etcd.loop.call_later(left, self._expire, self._generation, self._lease)

    @property
    def session(self) -> int:
        """The number of the connection; 0 without one."""
        return self._generation if self.connected else 0

    def renew(self) -> None:
        """The lease has its whole time again."""
        self._generation += 1
        self.doubt()

    def exit(self) -> None:
        """The process has ended: its lease ends by itself, unless its daemon revokes it before."""
        if self in self._etcd.clients:
            self._etcd.clients.remove(self)
            self.drop()
            self.doubt()

    def revoke(self, lease: int) -> None:
        """End the lease of another process of this node, behind what was sent before."""
        self._ended[lease] = None
        self._send(partial(self._revoke, lease))

    def _revoke(self, lease: int) -> None:
        self._ended.pop(lease, None)
        self._etcd.revoke(lease, "revoked")

    def _expire(self, generation: int, lease: int) -> None:
        if generation == self._generation and not self.connected and self._etcd.up:
            self._etcd.revoke(lease, "expired")

    def _greet(self) -> None:
        self._trying = False
        etcd = self._etcd
        if self not in etcd.clients or not self._process.alive or not etcd.reaches(self._process.node):
            return
        if self.orphan and not self._granted.is_set():
            return
        self._generation += 1
        self.connected = True
        if etcd.leases.get(self._lease) is not self:
            self._lease = etcd.grant(self, self._lease)
            etcd.log("lease", f"{self._lease:x} granted to {self._process.name}")
        first = not self._granted.is_set()
        self._granted.set()
        if first:
            self.granted(self._lease)
        for lease in self._ended:
            self._send(partial(self._revoke, lease))
        for key in self._gone:
            self._send(partial(self._delete, key))
        for key, value in self._own.items():
            self._send(partial(self._put, key, value))
        for entry in self._watchers:
            self._follow(entry)

    def _put(self, key: str, value: bytes) -> None:
        self._etcd.store.put(key, value, self._lease)

    def _delete(self, key: str) -> None:
        self._etcd.store.delete(key, self._lease)
        if key not in self._own:
            self._gone.pop(key, None)

    def _send(self, work: Callable[[], None]) -> None:
        """Do something at the server, behind what was sent before, unless the connection ends first."""
        if self.connected:
            etcd = self._etcd
            self._due = max(self._due + TICK, etcd.loop.time() + DELAY * (1 + etcd.random.random()))
            etcd.loop.call_at(self._due, self._arrived, self._generation, work)

    def _arrived(self, generation: int, work: Callable[[], None]) -> None:
        if generation == self._generation and self._lease in self._etcd.leases:
            work()

    def _follow(self, entry: tuple[str, Watcher, dict[str, bytes]]) -> None:
        prefix, etcd, generation = entry[0], self._etcd, self._generation

        def snapshot() -> None:
            items = etcd.store.items(prefix)
            self._stops.append(etcd.store.follow(prefix, lambda key, value: self._changed(entry, key, value)))
            self._send(lambda: self._process.enter(lambda: self._compare(entry, dict(items), generation)))

        self._send(snapshot)

    def _changed(self, entry: tuple[str, Watcher, dict[str, bytes]], key: str, value: bytes | None) -> None:
        self._etcd.events += 1
        self._send(lambda: self._process.enter(lambda: self._change(entry, key, value)))

    def _compare(self, entry: tuple[str, Watcher, dict[str, bytes]], new: dict[str, bytes], generation: int) -> None:
        self._etcd.events += len(new)
        for key, value in new.items():
            self._change(entry, key, value)
        missing = [key for key in entry[2] if key not in new]
        if missing:
            self._etcd.loop.call_later(GRACE, self._miss, entry, missing, generation)

    def _miss(self, entry: tuple[str, Watcher, dict[str, bytes]], missing: list[str], generation: int) -> None:
        if generation != self._generation or not self.connected or not self._process.alive:
            return
        there = {key for key, _ in self._etcd.store.items(entry[0])}
        for key in missing:
            if key not in there:
                self._change(entry, key, None)

    def _change(self, entry: tuple[str, Watcher, dict[str, bytes]], key: str, value: bytes | None) -> None:
        _, watcher, view = entry
        if value is None:
            if view.pop(key, None) is None:
                return
        elif view.get(key) == value:
            return
        else:
            view[key] = value
        watcher(key, value)

    def _stop_watching(self) -> None:
        stops, self._stops = self._stops, []
        for stop in stops:
            stop()
