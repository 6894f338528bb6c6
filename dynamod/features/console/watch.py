"""What all open consoles of a server are told. Asks the daemon only while one is open."""

import asyncio
import contextlib
import logging
import time
from typing import Any

import msgspec

from dynamod.features.top.commands import TOP

from .asking import Daemon, DaemonError, DaemonRefuses
from .figures import History, point
from .fleet import Looks, fleet, looks_of, models_of
from .recorder import Recorder

log = logging.getLogger("dynamod.console")

EVERY = 1.0
"""Seconds between looks."""
STATUS_EVERY = 5.0
"""Seconds between questions for what changes less."""
AGAIN = 1.0
"""Seconds until the daemon is asked again after it has not answered."""
BATCH = 1000
"""Requests of one event."""

_encode = msgspec.json.Encoder().encode


class Reader:
    """One open console. The newest event of each kind waits for it. `owner`: see `access.Access`."""

    def __init__(self, owner: str | None) -> None:
        self.owner = owner
        self.seen = 0  # number of the last request that it was told
        self.open: list[dict[str, Any]] = []
        self.over = False
        self.changed = asyncio.Event()
        self._waiting: dict[str, bytes] = {}

    def tell(self, name: str, payload: bytes) -> None:
        """Send an event; a slow browser gets the newest one of a name."""
        self._waiting[name] = payload
        self.changed.set()

    def waits(self, name: str) -> bool:
        """Whether the browser has not taken the last event of a name yet."""
        return name in self._waiting

    def take(self) -> list[tuple[str, bytes]]:
        """The events that wait."""
        self.changed.clear()
        found, self._waiting = [*self._waiting.items()], {}
        return found

    def end(self) -> None:
        """Tell the browser nothing more: the server ends."""
        self.over = True
        self.changed.set()


class Watch:
    """Tells readers what the daemon says. `recorder`: of the server's requests; None: the server serves no models."""

    def __init__(self, daemon: Daemon, recorder: Recorder | None = None) -> None:
        self._daemon, self._recorder = daemon, recorder
        self._readers: set[Reader] = set()
        self._wanted = asyncio.Event()
        self._history = History()
        self._before: Looks | None = None  # one look ago
        self._marked: Looks | None = None  # at the last point of the history
        self._last: dict[str, bytes] = {}

    def enter(self, reader: Reader) -> None:
        """Tell it from now on."""
        self._readers.add(reader)
        self._wanted.set()
        reader.tell("history", _encode(self._history.points()))
        for name, payload in self._last.items():
            reader.tell(name, payload)

    def leave(self, reader: Reader) -> None:
        """Tell it nothing more."""
        self._readers.discard(reader)
        if not self._readers:
            self._wanted.clear()

    async def run(self) -> None:
        """Ask the daemon while there are readers, without end. Ends all readers when it is cancelled."""
        try:
            while True:
                await self._wanted.wait()
                try:
                    await self._follow()
                except (DaemonError, msgspec.MsgspecError) as error:
                    self._tell("lost", _encode({"why": str(error)}))
                    await asyncio.sleep(AGAIN)
        finally:
            for reader in self._readers:
                reader.end()

    async def _follow(self) -> None:
        """Tell the readers of each look, until there are none, or until other nodes come or go."""
        asked, several = time.monotonic(), await self._nodes() > 1
        await self._status(several)
        command, query = ("everywhere", {"command": TOP.name}) if several else (TOP.name, {})
        events = self._daemon.events(command, EVERY, query)
        try:
            async for payload in events:
                if not self._readers:
                    return
                self._look(looks_of(payload, several=several))
                self._requests()
                if time.monotonic() - asked >= STATUS_EVERY:
                    asked = time.monotonic()
                    await self._status(several)
                    if (await self._nodes() > 1) != several:
                        return
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # an async generator
        raise DaemonError("the daemon has ended")

    async def _status(self, several: bool) -> None:
        """Tell the readers what is wrong, and which models can be asked through each process."""
        self._tell("status", _encode(await self._daemon.read("status")), keep=True)
        command, query = ("everywhere", {"command": "ps"}) if several else ("ps", {})
        with contextlib.suppress(DaemonRefuses):
            found = models_of(await self._daemon.read(command, query), several=several)
            self._tell("served", _encode(found), keep=True)

    async def _nodes(self) -> int:
        """Tell the readers of the nodes of the cluster. Returns their number, 0 where the daemon knows no cluster."""
        try:
            found = await self._daemon.read("nodes")
        except DaemonRefuses:  # the feature is off
            found = []
        self._tell("nodes", _encode(found), keep=True)
        return len(found)

    def _look(self, look: Looks) -> None:
        view, rows = fleet(look, self._before)
        self._before = look
        now = time.time()
        self._tell("top", _encode({"at": now, "rows": rows, **msgspec.structs.asdict(view)}), keep=True)
        if self._history.due(now):
            found = point(now, fleet(look, self._marked)[0])
            known = self._marked is not None
            self._marked = look
            if known:
                self._history.add(found)
                self._tell("point", _encode(found))

    def _requests(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        for reader in self._readers:
            if reader.waits("requests"):
                continue  # what has ended meanwhile comes with the next event
            ended, now = recorder.after(reader.seen, reader.owner)[-BATCH:], recorder.open(reader.owner)
            if ended or now or reader.open:
                reader.tell("requests", _encode({"ended": ended, "open": now}))
            reader.seen, reader.open = recorder.number, now

    def _tell(self, name: str, payload: bytes, *, keep: bool = False) -> None:
        if keep:
            self._last[name] = payload
        for reader in self._readers:
            reader.tell(name, payload)
