"""The registry as a process of the node sees it: over the link to the daemon that holds the node.

When that daemon ends, nothing is lost here: the view stays, and once it (or its successor) is back, the process greets
with the lease it had, puts its keys again and compares the new snapshot with what it knew. Keys that are missing get a
time of grace, because their owners have to come back too.

The daemon may be a process that serves, too (a user's own file). When it is stopped nobody else can say so: whoever
does not hear from it for HEARTBEAT seconds takes it to be quarantined, until it is heard.
"""

import asyncio
import itertools
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason
from dynamod.message.node import Changed, Delete, FromNode, Hello, Put, Snapshot, ToNode, Watch, Welcome
from dynamod.transport.framing import MAGIC, FrameError, Unframer, pack

from .base import Watcher
from .keys import QUARANTINED, quarantine_key

log = logging.getLogger("dynamod.registry")

RETRY = 0.1
GRACE = 3.0
ECHO = "local/echo/"
"""Keys that a process puts to hear them back from the daemon."""
HEARTBEAT = 2.0
"""Seconds without a word of the daemon, although it was asked."""
ASK = 0.5
"""Seconds between two questions."""
_PEER = struct.Struct("3i")  # pid, uid, gid
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FromNode)


class LinkRegistry(Actor):
    """Keeps the link to the daemon at `path`, for ever. `hello` is what the process says of itself."""

    def __init__(
        self,
        path: str,
        hello: Hello,
        other: Callable[[FromNode], None] | None = None,
        lost: Callable[[], None] | None = None,
        welcomed: Callable[[Welcome], None] = lambda _welcome: None,
    ) -> None:
        self._welcomed = welcomed
        self._path = path
        self._hello = hello
        self._other = other  # takes what is not the registry's business (Ask)
        self._lost = lost
        self._own: dict[str, bytes] = {}
        self._watchers: dict[int, tuple[str, Watcher]] = {}
        self._view: dict[int, dict[str, bytes]] = {}
        self._missing: dict[int, set[str]] = {}  # keys of the last snapshot's grace, until their owner is back
        self._lease = hello.lease
        self._granted = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self.node = ""
        self._heard = 0.0
        self._echo = ""
        self._silent = ""  # key of the daemon's quarantine while it is not heard

    async def started(self) -> None:
        """Begin to keep the link; does not wait for it."""
        self.context.task(self._keep(), "keep link")

    async def stopping(self, reason: Reason) -> None:
        """Close the link: the daemon revokes the lease at once."""
        if self._writer is not None:
            self._writer.close()

    # Registry.

    @property
    def lease(self) -> int:
        """See base.Registry."""
        return self._lease if self._granted.is_set() else 0

    @property
    def connected(self) -> bool:
        """Whether the daemon is there now."""
        return self._writer is not None

    async def leased(self, timeout: float) -> int:
        """See base.Registry."""
        async with asyncio.timeout(timeout):
            await self._granted.wait()
        return self._lease

    def put(self, key: str, value: bytes) -> None:
        """See base.Registry."""
        self._own[key] = value
        self.say(Put(key, value))

    def delete(self, key: str) -> None:
        """See base.Registry."""
        if self._own.pop(key, None) is not None:
            self.say(Delete(key))

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """See base.Registry."""
        number = len(self._watchers) + 1
        self._watchers[number] = (prefix, watcher)
        self._view[number] = {}
        self.say(Watch(number, prefix))

    def say(self, message: ToNode) -> None:
        """Send a word to the daemon if it is there; the registry's own words are repeated when it comes back."""
        if self._writer is not None:
            self._writer.write(pack(_encoder.encode(message)))

    def inspection(self) -> dict[str, Any]:
        """Whether the link is up, and what is held and watched."""
        return {
            "connected": self.connected,
            "lease": f"{self._lease:x}",
            "own": sorted(self._own),
            "watches": {prefix: len(self._view[n]) for n, (prefix, _) in self._watchers.items()},
        }

    # The link.

    async def _keep(self) -> None:
        silent = True
        while True:
            try:
                async with asyncio.timeout(2.0):
                    reader, writer = await asyncio.open_unix_connection(self._path)
            except (OSError, TimeoutError):
                if not silent:
                    log.warning("no daemon at %s; going on with the last known view", self._path)
                    silent = True
                await asyncio.sleep(RETRY)
                continue
            silent = False
            listening = self.context.task(self._listen(writer), "listen")
            try:
                await self._talk(reader, writer)
            except (OSError, FrameError, msgspec.MsgspecError) as error:
                log.warning("the link broke: %s", error)
            finally:
                self._writer = None
                listening.cancel()
                self._tell_silent("")
                writer.close()
                if self._lost is not None:
                    self._lost()
            await asyncio.sleep(RETRY)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unframer = Unframer()
        hello = msgspec.structs.replace(self._hello, lease=self._lease)
        writer.write(MAGIC + pack(_encoder.encode(hello)))
        while data := await reader.read(1 << 16):
            self._heard = self.context.now()
            for payload in unframer.feed(data):
                self._take(_decoder.decode(payload), writer)

    async def _listen(self, writer: asyncio.StreamWriter) -> None:
        """Ask the daemon for a word again and again. A late look says more about us than about it."""
        pid = _peer(writer)
        looked = self._heard = self.context.now()
        for count in itertools.count():
            await asyncio.sleep(ASK)
            now = self.context.now()
            if now - looked > ASK + 0.5:
                self._heard = now
            looked = now
            if self._writer is writer and self.node and pid not in (0, os.getpid()):
                self._ask(count)
                silent = now - self._heard > HEARTBEAT
                self._tell_silent(quarantine_key(self.node, pid) if silent else "")

    def _ask(self, count: int) -> None:
        key = f"{ECHO}{self._lease:x}"
        if self._echo != key:
            self._echo = key
            self.watch(key, lambda _key, _value: None)
        self.say(Put(key, b"%d" % count))

    def _tell_silent(self, key: str) -> None:
        before, self._silent = self._silent, key
        if before != key:
            log.warning("the daemon %s", "does not answer" if key else "answers again")
            for prefix, watcher in list(self._watchers.values()):
                if prefix == QUARANTINED:
                    watcher(key or before, b"" if key else None)

    def _take(self, message: FromNode, writer: asyncio.StreamWriter) -> None:
        match message:
            case Welcome(lease, node):
                self._lease, self.node = lease, node
                self._writer = writer
                self._welcomed(message)
                for key, value in self._own.items():
                    self.say(Put(key, value))
                for number, (prefix, _) in self._watchers.items():
                    self.say(Watch(number, prefix))
                self._granted.set()
            case Snapshot(number, items):
                self._compare(number, dict(items))
            case Changed(number, key, value):
                self._change(number, key, value)
            case _:
                if self._other is not None:
                    self._other(message)

    def _compare(self, number: int, new: dict[str, bytes]) -> None:
        for key, value in new.items():
            self._change(number, key, value)
        missing = {key for key in self._view[number] if key not in new}
        self._missing[number] = missing
        if missing:
            self.context.task(self._expire(number, missing), "grace")

    async def _expire(self, number: int, missing: set[str]) -> None:
        await asyncio.sleep(GRACE)
        if self._missing.get(number) is missing and self.connected:  # else a newer snapshot has decided anew
            for key in sorted(missing):
                self._change(number, key, None)

    def _change(self, number: int, key: str, value: bytes | None) -> None:
        view = self._view[number]
        self._missing.get(number, set()).discard(key)
        if value is None:
            if view.pop(key, None) is None:
                return
        elif view.get(key) == value:
            return
        else:
            view[key] = value
        self._watchers[number][1](key, value)


def _peer(writer: asyncio.StreamWriter) -> int:
    """Pid of the process that listens at the other end; 0 where the kernel does not tell."""
    sock = writer.get_extra_info("socket")
    try:
        pid, _, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except (OSError, AttributeError):
        return 0
    return int(pid)
