"""The daemon's side of the node link: processes greet, get leases, put and watch keys; guests take commands."""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from dynamod import __version__
from dynamod.actor import Actor, Reason
from dynamod.discovery.keys import exited_key, quarantine_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.errors import DynamodError
from dynamod.message.node import (
    Answer,
    Ask,
    Changed,
    Claim,
    Claimed,
    Delete,
    FromNode,
    Heartbeat,
    Hello,
    Put,
    Report,
    Snapshot,
    ToNode,
    Watch,
    Welcome,
)
from dynamod.transport.framing import MAGIC, FrameError, Unframer, pack
from dynamod.transport.unix import remove_stale

from .heartbeat import HeartbeatMonitor

log = logging.getLogger("dynamod.daemon")

REMEMBERED = 256
"""Processes that have ended and are still told of."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ToNode)


class LinkServer(Actor):
    """Listens at `path`. The registry it serves is the node's. `graphs`: names of those that run in this process."""

    def __init__(
        self,
        path: Path,
        registry: MemoryRegistry,
        node: str,
        changed: Callable[[], None],
        graphs: Callable[[], Collection[str]] = tuple,
        cluster: Mapping[str, str] | None = None,
        lease: int = 0,
    ) -> None:
        self._lease = lease or registry.grant()
        self._exited: deque[str] = deque()
        self._path, self.registry, self._node, self._changed = path, registry, node, changed
        self._cluster = dict(cluster or {})
        self._graphs = graphs
        self._server: asyncio.Server | None = None
        self.ends: set[LinkEnd] = set()
        self._ear = HeartbeatMonitor(self._heard, self._value)

    async def started(self) -> None:
        """Begin to listen; only processes of the same user may connect."""
        remove_stale(str(self._path))
        old = os.umask(0o177)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(self._accept, str(self._path))
        finally:
            os.umask(old)
        self.context.task(self._ear.listen(), "listen")

    async def stopping(self, reason: Reason) -> None:
        """Close everything: processes keep their view and look for a successor."""
        if self._server is not None:
            self._server.close()
        for end in list(self.ends):
            end.close()
        self._path.unlink(missing_ok=True)

    def guests(self) -> "list[LinkEnd]":
        """Links of foreground processes that joined this node."""
        return [end for end in self.ends if end.hello is not None and end.hello.guest]

    def leases(self) -> dict[int, int]:
        """Leases of linked component processes, by pid."""
        return {end.hello.pid: end.lease for end in self.ends if end.hello is not None and not end.hello.guest}

    def names(self) -> set[str]:
        """Names of graphs on this node: our own and the guests'."""
        return {*self._graphs(), *(name for end in self.guests() for name in end.names())}

    def inspection(self) -> dict[str, Any]:
        """Who is linked."""
        hellos = [end.hello for end in self.ends if end.hello is not None]
        return {
            "registry": msgspec.to_builtins(self.registry.statistics()),
            "links": sorted(f"{hello.process} pid {hello.pid}" for hello in hellos),
        }

    def _accept(self) -> "LinkEnd":
        return LinkEnd(
            self.registry, self._node, self.ends, self._changed, self.names, self._cluster, self._gone, self._ear
        )

    def _value(self, key: str) -> bytes | None:
        found = self.registry.own(key)
        return found[0] if found is not None else None

    def _heard(self, pid: int, why: str) -> None:
        """A process that is not our child is silent, or is heard again: ingress processes leave it alone meanwhile."""
        key = quarantine_key(self._node, pid)
        if why:
            self.registry.put(key, why.encode(), self._lease)
        else:
            self.registry.delete(key, self._lease)
        self._changed()

    def _gone(self, lease: int) -> None:
        """A process has closed its link: whoever waits for it need not wait for its lease to expire."""
        key = exited_key(lease)
        self.registry.put(key, b"", self._lease)
        self._exited.append(key)
        if len(self._exited) > REMEMBERED:
            self.registry.delete(self._exited.popleft(), self._lease)


class LinkEnd(asyncio.Protocol):
    """One linked process."""

    def __init__(
        self,
        registry: MemoryRegistry,
        node: str,
        ends: "set[LinkEnd]",
        changed: Callable[[], None],
        taken: Callable[[], set[str]],
        cluster: dict[str, str],
        gone: Callable[[int], None],
        ear: HeartbeatMonitor,
    ) -> None:
        self._ear = ear
        self._cluster, self._gone = cluster, gone
        self._registry, self._node, self._ends, self._changed = registry, node, ends, changed
        self._taken = taken
        self._claimed: set[str] = set()
        self._unframer = Unframer()
        self._transport: asyncio.Transport | None = None
        self._unwatch: list[Callable[[], None]] = []
        self._asks: dict[int, asyncio.Future[Any]] = {}
        self._next_ask = 0
        self.hello: Hello | None = None
        self.lease = 0
        self._rows: tuple[dict[str, Any], ...] = ()
        self._reported = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        self._transport = transport
        self._ends.add(self)
        transport.write(MAGIC)

    def data_received(self, data: bytes) -> None:
        """Take words; anything else closes the link."""
        try:
            for payload in self._unframer.feed(data):
                self._take(_decoder.decode(payload))
        except (FrameError, msgspec.MsgspecError, KeyError) as error:
            log.warning("closed a link: %s", error)
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The process is gone, or closed the link: its lease ends now."""
        self._ends.discard(self)
        self._transport = None
        for stop in self._unwatch:
            stop()
        for future in self._asks.values():
            if not future.done():
                future.set_exception(DynamodError("the process is gone"))
        if self.lease:
            self._ear.gone(self.lease)
            self._gone(self.lease)
            self._registry.revoke(self.lease)
        self._changed()

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The guest's `ps`: what it has reported last, grown older since."""
        age = time.monotonic() - self._reported
        rows = [{**row, "uptime": row["uptime"] + age} if row["uptime"] is not None else row for row in self._rows]
        return self._ear.rows(rows)

    def names(self) -> set[str]:
        """Names of the guest's graphs, also of those that it is about to start."""
        return self._claimed | {row["graph"] for row in self.rows}

    def close(self) -> None:
        """Close the link."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, command: str, arguments: dict[str, Any], *, timeout: float) -> Any:
        """Ask the process something. Raises TimeoutError, or DynamodError with its own message."""
        self._next_ask += 1
        number = self._next_ask
        future = self._asks[number] = asyncio.get_running_loop().create_future()
        try:
            self._say(Ask(number, command, arguments))
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._asks[number]

    def _take(self, message: ToNode) -> None:
        match message:
            case Hello():
                self.hello = message
                self.lease = self._registry.grant(message.lease)
                self._say(Welcome(self.lease, self._node, __version__, self._cluster))
                self._changed()
            case Put(key, value):
                self._registry.put(key, value, self.lease)
            case Delete(key):
                self._registry.delete(key, self.lease)
            case Watch(number, prefix):
                self._say(Snapshot(number, tuple(self._registry.items(prefix))))
                self._unwatch.append(self._registry.follow(prefix, lambda k, v: self._say(Changed(number, k, v))))
            case Report(rows):
                self._rows, self._reported = rows, time.monotonic()
                self._changed()
            case Answer(number, value, error):
                future = self._asks.get(number)
                if future is not None and not future.done():
                    if error:
                        future.set_exception(DynamodError(error))
                    else:
                        future.set_result(value)
            case Claim(name):
                given = unused(name, self._taken())
                self._claimed.add(given)
                self._say(Claimed(name, given))
            case Heartbeat():
                if self.hello is not None:
                    self._ear.heartbeat(self.lease, self.hello)
            case _:
                log.debug("unexpected word from %s", self.hello)

    def _say(self, message: FromNode) -> None:
        if self._transport is not None:
            self._transport.write(pack(_encoder.encode(message)))


def unused(name: str, taken: Collection[str]) -> str:
    """`name`, else `name-2`, `name-3`, ..."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
