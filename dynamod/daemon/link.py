"""Connections of processes to the daemon: they greet, get leases, put and watch keys, and are asked."""

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dynamod import __version__
from dynamod.actor import Actor, Reason, handle
from dynamod.discovery.keys import INSTANCES, exited_key, quarantine_key, slow_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.control import Ping
from dynamod.message.install import origin
from dynamod.message.node import (
    Changed,
    Delete,
    Heartbeat,
    Hello,
    Output,
    Put,
    Refused,
    Said,
    Snapshot,
    State,
    ToNode,
    Watch,
    Welcome,
)
from dynamod.message.protocol import PROTOCOL
from dynamod.observe.bounded import bounded
from dynamod.runtime.liveness import Clocks, Verdict
from dynamod.transport.channel import Channel
from dynamod.transport.unix import Listener

from .heartbeat import HeartbeatMonitor, Heartbeats
from .reported import Reported

log = logging.getLogger("dynamod.daemon")

STEP_SHOWN_S = 1.0
"""Seconds from which on a step of an engine is shown with its time."""
REMEMBERED = 256
"""Processes that have ended and whose keys are still there."""


@dataclass(slots=True)
class Owner:
    """What the owner of a connected process does for it: the actor that started it, a session, an attached graph.

    `answer(command, arguments)`: answers a question of the process; None: it may ask nothing. `stated()`: a component
    has another state. `cause(left)`: why the process ended; `left`: it had no instances any more. `kill(why)`: ends a
    child that is unresponsive for too long. `output`: takes a line of its output.
    """

    answer: Callable[[str, dict[str, Any]], Awaitable[Any]] | None = None
    stated: Callable[[], None] = lambda: None
    cause: Callable[[bool], Awaitable[str]] | None = None
    kill: Callable[[str], None] = lambda _why: None
    output: Callable[[Output], None] = lambda _line: None


class Connection:
    """One connected process, published for reading; only its own messages change it."""

    def __init__(self, server: "LinkServer", clocks: Clocks, opened: Callable[["Connection"], None]) -> None:
        self._server, self._opened = server, opened
        self._unwatch: list[Callable[[], None]] = []
        self._closed: list[Callable[[], None]] = []
        self._clocks = clocks
        self.channel = Channel(
            self._take, daemon=True, closed=self._lost, handler=self._answer, spawn=server.context.task
        )
        self.owner = Owner()
        self.hello: Hello | None = None
        self.heartbeats: Heartbeats | None = None
        self.name = ""
        self.pid = self.lease = 0  # until the greeting
        self._gone = False
        self.reported = Reported(time.monotonic)

    @property
    def why(self) -> str:
        """Why it counts as unresponsive; empty when it does not."""
        return self.heartbeats.why if self.heartbeats is not None else ""

    @property
    def doing(self) -> str:
        """What the process does, in words; empty before its first message."""
        beats = self.heartbeats
        if beats is None or not self.reported.states:
            return ""
        if beats.verdict.state:
            return beats.verdict.why
        if phase := self.reported.phases.current:
            return phase
        if (seconds := beats.progress_age) is not None and beats.last.step is not None and seconds > STEP_SHOWN_S:
            return f"a step of {beats.last.tokens} tokens for {seconds:.0f} s"
        return "works" if beats.last.running else "idle"

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the process has gone; at once when it has."""
        if self._gone:
            callback()
        else:
            self._closed.append(callback)

    def _take(self, message: ToNode) -> None:
        if self.heartbeats is not None:
            self.heartbeats.sign()
        server, registry = self._server, self._server.registry
        match message:
            case Hello():
                self._greet(message)
            case Put(key, value):
                registry.put(key, value, self.lease)
            case Delete(key):
                registry.delete(key, self.lease)
            case Watch(number, prefix):
                self.channel.send(Snapshot(number, tuple(registry.items(prefix))))
                self._unwatch.append(
                    registry.follow(prefix, lambda key, value: self.channel.send(Changed(number, key, value)))
                )
            case State():
                self.reported.take(message)
                self.owner.stated()
                server.changed()
            case Heartbeat():
                assert self.heartbeats is not None
                self.heartbeats.beat(message)
            case Output():
                self.owner.output(message)
            case _:
                log.debug("unexpected message of %s", self.name)

    def _greet(self, hello: Hello) -> None:
        server = self._server
        if server.closing() and hello.kind != "component":
            self.channel.close()  # it asks the next daemon; here it would be told to stop
            return
        if hello.protocol != PROTOCOL:
            text = (
                f"the daemon (process {os.getpid()}) is dynamod {__version__} with protocol {PROTOCOL}, "
                f"{hello.process} is dynamod {hello.version} with protocol {hello.protocol}"
            )
            self.reported.refusal = f"{text}; install {origin()} where its interpreter is"
            self.channel.send(Refused(text, "stop the daemon with dynamo stop, or choose another --socket"))
            self.channel.close()
            return
        if hello.kind != "session":
            self.lease = server.registry.grant(hello.lease)
            server.registry.delete(exited_key(self.lease), server.lease)  # a file whose daemon has died is back
        clocks = Clocks(heartbeat=hello.patience) if hello.patience else self._clocks
        self.hello, self.pid, self.name = hello, hello.pid, self.name or hello.process
        self._opened(self)
        self.heartbeats = server.monitor.watch(
            self.name,
            clocks,
            lambda verdict: server.judged(self.lease, verdict),
            kill=lambda why: self.owner.kill(why),
            pid=self._peer(),
        )
        if hello.kind == "component":
            self.heartbeats.beat(
                Heartbeat()
            )  # it may hang before it sends one; a file may take its time until it serves
        cluster, said = dict(server.cluster), dict(server.said)
        self.channel.send(
            Welcome(self.lease, server.node, __version__, cluster, os.getpid(), self.name, PROTOCOL, said)
        )
        server.changed()

    def _peer(self) -> int:
        """Process id of the sender in our own namespace; 0: not known.

        A component is our child. The kernel says which process has connected to the socket; what a process in a
        container says of itself is no id of ours.
        """
        assert self.hello is not None
        return self.hello.pid if self.hello.kind == "component" else self.channel.peer_pid

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        if self.owner.answer is None:
            raise ValueError(f"{command} cannot be asked here")
        return await self.owner.answer(command, arguments)

    def _lost(self) -> None:
        """The process is gone, or closed the connection: its lease ends now."""
        self._gone = True
        if self.channel.fault:
            log.warning("closed the connection of %s: %s", self.name or "a stranger", self.channel.fault)
        for stop in self._unwatch:
            stop()
        server = self._server
        server.connections.discard(self)
        if self.heartbeats is not None:
            server.monitor.forget(self.heartbeats)
        if self.lease and server.context.cell.alive:
            server.context.task(self._exited(self.lease), "exit of a process")
        elif self.lease:
            server.exited(self.lease)
        for callback in self._closed:
            callback()
        server.changed()

    async def _exited(self, lease: int) -> None:
        """Say that the process has gone, and why if it crashed: others then know how to continue with its requests."""
        server = self._server
        left = not any(key.startswith(INSTANCES) for key in server.registry.keys_of(lease))
        server.exited(lease, await self.owner.cause(left) if self.owner.cause is not None else "")


class LinkServer(Actor):
    """Listens at `path`, for processes of the same user. The registry that it serves is the node's; the lease is ours.

    `greeted` is called with every process that comes over the socket; `changed` whenever one has changed. While
    `closing` no file and no command is taken any more. `said`: what parts of features say to all processes.
    """

    def __init__(
        self,
        path: Path,
        registry: MemoryRegistry,
        node: str,
        *,
        clocks: Clocks = Clocks(),
        cluster: Mapping[str, str] | None = None,
        changed: Callable[[], None] = lambda: None,
        greeted: Callable[[Connection], None] = lambda _connection: None,
        closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.registry, self.node, self.changed, self.cluster = registry, node, changed, cluster or {}
        self.closing = closing
        self.said: dict[str, Any] = {}
        self.monitor = HeartbeatMonitor()
        self.connections: set[Connection] = set()
        self._clocks, self._greeted = clocks, greeted
        self.lease = registry.grant()  # of what the daemon itself puts
        self._exited: deque[str] = deque()
        bounded(self, "ended processes", REMEMBERED, lambda one: len(one._exited), "processes")
        self._judged: dict[int, str] = {}  # key of each lease whose process is slow or stuck
        self._listener = Listener(str(path), lambda: self._connection(self._clocks, self._greeted).channel)

    async def started(self) -> None:
        """Begin to listen. Raises OSError."""
        await self._listener.start()
        self.context.task(self._listener.keep(), "socket")
        self.context.task(self.monitor.run(), "heartbeats")

    async def stopping(self, reason: Reason) -> None:
        """Close everything."""
        for connection in list(self.connections):
            connection.channel.close()
        await self._listener.close()

    @handle
    async def ping(self, message: Ping) -> str:
        """Answer the watchdog."""
        return "pong"

    async def adopt(
        self, sock: socket.socket, name: str, clocks: Clocks, greeted: Callable[[Connection], None] | None = None
    ) -> Connection:
        """Take the other end of a socket pair: a component process, or the command that started this daemon."""
        connection = self._connection(clocks, greeted or (lambda _connection: None))
        connection.name = name
        await asyncio.get_running_loop().create_unix_connection(lambda: connection.channel, sock=sock)
        return connection

    def say(self, feature: str, value: Any) -> None:
        """Tell all processes what the part of a feature says, also processes that come later."""
        self.said[feature] = value
        for connection in self.connections:
            if connection.lease:
                connection.channel.send(Said(feature, value))

    def leases(self) -> dict[int, int]:
        """Leases of connected processes, by pid."""
        return {connection.pid: connection.lease for connection in self.connections if connection.lease}

    def judged(self, lease: int, verdict: Verdict) -> None:
        """Publish what a process is: ingress processes send nothing to a stuck one, and avoid a slow one."""
        if (published := self._judged.pop(lease, None)) is not None:
            self.registry.delete(published, self.lease)
        if verdict.state:
            key = self._judged[lease] = quarantine_key(lease) if verdict.state == "stuck" else slow_key(lease)
            self.registry.put(key, verdict.why.encode(), self.lease)
        self.changed()

    def exited(self, lease: int, cause: str = "") -> None:
        """A process has gone: its waiters need not wait for its lease to expire. `cause`: why it crashed."""
        key = exited_key(lease)
        self.registry.put(key, cause.encode(), self.lease)
        self._exited.append(key)
        if len(self._exited) > REMEMBERED:
            self.registry.delete(self._exited.popleft(), self.lease)
        self.registry.revoke(lease)

    def inspection(self) -> dict[str, Any]:
        """The connected processes."""
        return {
            "registry": msgspec.to_builtins(self.registry.statistics()),
            "connections": sorted(f"{one.name} pid {one.pid}" for one in self.connections if one.hello is not None),
        }

    def _connection(self, clocks: Clocks, greeted: Callable[[Connection], None]) -> Connection:
        connection = Connection(self, clocks, greeted)
        self.connections.add(connection)
        return connection
