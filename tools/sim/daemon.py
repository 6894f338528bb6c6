"""A node's daemon, as far as it is simulated: the real link with its heartbeats, and its processes' connections to it.

The real `LinkServer` greets, judges heartbeats, quarantines, says how processes ended, and revokes their leases. What
it writes to the registry goes to the simulated etcd at once; processes watch that for themselves.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

from dynamod import __version__
from dynamod.actor import ActorUnreachable, Reason
from dynamod.daemon.exits import EXIT, crash
from dynamod.daemon.heartbeat import LOOK, HeartbeatMonitor
from dynamod.daemon.link import Connection, LinkServer
from dynamod.message.errors import DynamodError
from dynamod.message.node import Heartbeat, Hello
from dynamod.message.protocol import PROTOCOL
from dynamod.runtime.liveness import HEARTBEAT as BEAT
from dynamod.runtime.liveness import Clocks, Verdict
from dynamod.transport.base import Spawn
from dynamod.transport.channel import Channel, Handler

from .etcd import SimulatedRegistry
from .shape import HEARTBEAT, KILL
from .wire import NEAR, TICK, Process


class NodeRegistry:
    """What a link uses of `discovery.memory.MemoryRegistry`. The leases are those that processes have at etcd."""

    def __init__(self, own: SimulatedRegistry) -> None:
        self._own = own
        self.processes: dict[int, SimulatedRegistry] = {}  # by lease

    def grant(self, wanted: int = 0) -> int:
        """The lease that the process has already."""
        return wanted

    def put(self, key: str, value: bytes, lease: int) -> None:
        """Only the daemon's own keys come here."""
        self._own.put(key, value)

    def delete(self, key: str, lease: int) -> None:
        """See `put`."""
        self._own.delete(key)

    def revoke(self, lease: int) -> None:
        """End the lease of a process."""
        self._own.revoke(lease)
        if (client := self.processes.pop(lease, None)) is not None:
            client.exit()  # though the process may live on for a moment

    def keys_of(self, lease: int) -> list[str]:
        """The keys of a process."""
        client = self.processes.get(lease)
        return client.keys if client is not None else []


class Daemon(LinkServer):
    """The link of a node. `quarantined(lease)`: a process has become unresponsive."""

    def __init__(self, process: Process, own: SimulatedRegistry, quarantined: Callable[[int], None]) -> None:
        self.process, self.leases_of = process, NodeRegistry(own)
        self._quarantined = quarantined
        clocks = Clocks(heartbeat=HEARTBEAT, kill=KILL)
        super().__init__(Path("unused"), cast("Any", self.leases_of), f"n{process.node}", clocks=clocks)
        self.monitor = HeartbeatMonitor(asyncio.get_running_loop().time, kernel=False)

    async def started(self) -> None:
        """Judge heartbeats; nobody listens at a socket."""
        self.context.task(self._look(), "heartbeats")

    async def stopping(self, reason: Reason) -> None:
        """Close everything."""
        for connection in sorted(self.connections, key=lambda one: one.name):
            connection.channel.close()

    def connection(self, name: str) -> Connection:
        """The daemon's end of a new process's connection."""
        connection = self._connection(self._clocks, lambda _connection: None)
        connection.name = name
        return connection

    async def _look(self) -> None:
        looked = self.context.now()
        while True:
            await asyncio.sleep(LOOK)
            if not self.process.frozen:
                looked = self.monitor.look(looked)

    def judged(self, lease: int, verdict: Verdict) -> None:
        """As the real one; then say so."""
        super().judged(lease, verdict)
        if verdict.state == "stuck":
            self._quarantined(lease)


class _Way(asyncio.Transport):
    """What one end of a connection inside a node writes to: it arrives in order, and waits while the other is stopped.

    `own`, `other`: the protocols at this end and at the other, which lives in the process `target`.
    """

    def __init__(self, own: Channel, other: Channel, target: Process) -> None:
        super().__init__()
        self._own, self._other, self._target = own, other, target
        self._loop = asyncio.get_running_loop()
        self._closing, self._due = False, 0.0

    def _later(self, work: Callable[[], object]) -> None:
        self._due = max(self._due + TICK, self._loop.time() + NEAR)
        self._loop.call_at(self._due, self._target.enter, work)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._later(partial(self._deliver, bytes(data)))

    def _deliver(self, data: bytes) -> None:
        if self._other.open:  # a transport that is closed delivers nothing
            self._other.data_received(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._own.connection_lost, None)
            self._later(partial(self._other.connection_lost, None))

    abort = close


class Link:
    """A process's connection to its daemon: it greets once it has a lease, then gives signs of life.

    `lost` is called when the connection has ended and the process lives; `kill(why)` when its daemon ends it.
    """

    def __init__(
        self,
        daemon: Daemon,
        process: Process,
        registry: SimulatedRegistry,
        lost: Callable[[], None],
        kill: Callable[[str], None],
    ) -> None:
        self._daemon, self._process, self._registry = daemon, process, registry
        self._loop = asyncio.get_running_loop()
        self.asked: Handler | None = None  # answers what the daemon asks, in tasks that the second starts
        self.spawn: Spawn | None = None
        self.working: Callable[[], tuple[float | None, int]] = lambda: (None, 0)  # its engine's step, see Heartbeat
        self.channel = Channel(
            lambda _message: None,
            closed=lambda: lost() if process.alive else None,
            handler=self._answer,
            spawn=self._spawn,
        )
        self.connection = daemon.connection(process.name)
        self.connection.owner.cause, self.connection.owner.kill = self._cause, kill
        theirs = self.connection.channel
        self.channel.connection_made(_Way(self.channel, theirs, daemon.process))
        theirs.connection_made(_Way(theirs, self.channel, process))
        registry.granted = self._greet
        self.greeted = 0.0  # when the daemon learned of the process

    def _greet(self, lease: int) -> None:
        process, self.greeted = self._process, self._loop.time()
        self._daemon.leases_of.processes[lease] = self._registry
        self.channel.send(Hello(process.name, process.pid, lease, __version__, protocol=PROTOCOL))
        self._beat()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        try:
            return (self.spawn or self._daemon.context.task)(work, name)
        except ActorUnreachable:  # it is ending
            work.close()

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        if self.asked is None:
            raise DynamodError(f"{command} cannot be asked here")
        return await self.asked(command, arguments)

    def _beat(self) -> None:
        process = self._process
        if process.alive and self.channel.open:
            if not process.frozen:
                self.channel.send(Heartbeat(*self.working()))
            self._loop.call_later(BEAT, self._beat)

    async def _cause(self, left: bool) -> str:
        end = self._loop.time() + EXIT
        while self._process.alive and self._loop.time() < end:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(EXIT / 20)
        if self._process.alive:
            return ""
        return self._process.killed or crash(self._process.code, left=left, out_of_memory=False)
