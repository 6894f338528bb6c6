"""The daemon's ear for Python processes: which of them have not been heard for too long.

They are not its children, so there is no lifeline: they beat over their registry link, from the event loop that serves.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.node import Hello

from .stall import Clocks, clocks_of, judge

log = logging.getLogger("dynamod.daemon")

HEARTBEAT = 0.5
"""Seconds between two signs of life of a process."""
LOOK = 0.1
"""Seconds between two looks at who is silent."""
LATE = 0.5
"""A look that comes so much later says more about us than about others."""
PATIENCE = "local/heartbeat/"
"""A process that may be silent for longer than others puts the seconds under this key and its pid."""

Told = Callable[[int, str], None]
"""Takes a pid and why the process must be left alone; an empty text when it is heard again."""


@dataclass(slots=True)
class _Process:
    pid: int
    name: str
    at: float
    why: str = ""


class HeartbeatMonitor:
    """Judges who has beaten at least once. `told` hears of every change; `value(key)`: what the registry has there."""

    def __init__(
        self,
        told: Told,
        value: Callable[[str], bytes | None] = lambda _key: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told, self._value, self._now = told, value, now
        self._processes: dict[int, _Process] = {}  # by lease
        try:
            self._clocks = clocks_of(())
        except UserError as error:
            log.error("%s; processes may be silent for %g s", error.line(), Clocks().heartbeat)
            self._clocks = Clocks()

    def heartbeat(self, lease: int, hello: Hello) -> None:
        """A sign of life."""
        one = self._processes.get(lease)
        if one is None:
            one = self._processes[lease] = _Process(hello.pid, hello.process, self._now())
        one.at = self._now()
        self._judge(one, one.at)

    def gone(self, lease: int) -> None:
        """The link is closed: whoever is not linked is not judged. Unknown leases pass."""
        one = self._processes.pop(lease, None)
        if one is not None and one.why:
            self._told(one.pid, "")

    def rows(self, rows: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
        """Rows of `ps` that a process has told, with what it cannot tell itself: that it is silent."""
        silent = {one.pid: one.why for one in self._processes.values() if one.why}
        return tuple(
            {**row, "state": "Silent", "last_error": silent[row["pid"]]} if row["pid"] in silent else row
            for row in rows
        )

    async def listen(self) -> None:
        """Look again and again, for ever."""
        looked = self._now()
        while True:
            await asyncio.sleep(LOOK)
            looked = self.look(looked)

    def look(self, looked: float) -> float:
        """Judge everybody. `looked`: time of the look before; returns that of this one."""
        now = self._now()
        for one in list(self._processes.values()):
            if now - looked > LOOK + LATE:
                one.at = now
            self._judge(one, now)
        return now

    def _judge(self, one: _Process, now: float) -> None:
        before, one.why = one.why, judge(self._clocks_for(one.pid), now - one.at, None, 0)
        if bool(before) == bool(one.why):
            return
        if one.why:
            log.warning("%s (process %d) has been %s: nothing is sent to it until it moves", one.name, one.pid, one.why)
        else:
            log.info("%s (process %d) is heard again", one.name, one.pid)
        self._told(one.pid, one.why)

    def _clocks_for(self, pid: int) -> Clocks:
        value = self._value(f"{PATIENCE}{pid}")
        try:
            return Clocks(heartbeat=float(value)) if value else self._clocks
        except ValueError:
            return self._clocks
