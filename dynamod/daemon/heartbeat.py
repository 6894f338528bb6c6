"""Which connected processes are unresponsive: no heartbeat for too long, or an engine's step that does not end."""

import asyncio
import logging
import time
from collections.abc import Callable

from dynamod.runtime.liveness import Clocks, judge

log = logging.getLogger("dynamod.daemon")

LOOK = 0.1
"""Seconds between two looks at all processes."""
LATE = 0.5
"""A look that comes so much later says that the daemon itself was held up: nobody is judged by it."""


class Heartbeats:
    """The heartbeats of one process, from the first one on.

    `changed(why)`: it is unresponsive, or, empty, no longer. `kill(why)`: it has been so for too long.
    """

    def __init__(
        self,
        name: str,
        clocks: Clocks,
        changed: Callable[[str], None],
        now: Callable[[], float],
        kill: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self.name, self.clocks = name, clocks
        self.why = ""
        self._changed, self._now, self._kill = changed, now, kill
        self._since = 0.0  # when it became unresponsive
        self.at: float | None = None
        self._step: tuple[float, int] | None = None  # when the engine's step began, and its tokens

    @property
    def age(self) -> float | None:
        """Seconds since the last sign of life; None before the first."""
        return self._now() - self.at if self.at is not None else None

    def sign(self) -> None:
        """Any message is a sign of life, once there was a heartbeat."""
        if self.at is not None:
            self.at = self._now()
            self.judge(self.at)

    def beat(self, step: float | None, tokens: int) -> None:
        """A heartbeat; see message.node.Heartbeat."""
        self.at = self._now()
        self._step = (self.at - step, tokens) if step is not None else None
        self.judge(self.at)

    def end(self) -> None:
        """The process is gone: it is not unresponsive any more."""
        self.at = None
        if self.why:
            self.why = ""
            self._changed("")

    def judge(self, now: float) -> None:
        """Decide, and report what has changed."""
        if self.at is None:
            return
        began, tokens = self._step or (None, 0)
        before, self.why = self.why, judge(self.clocks, now - self.at, None if began is None else now - began, tokens)
        if before and self.why and now - self._since > self.clocks.until_kill:
            self._since = now
            self._kill(self.why)
        if bool(before) == bool(self.why):
            return
        if self.why:
            self._since = now
            log.warning("%s has been %s: nothing is sent to it until it responds", self.name, self.why)
        else:
            log.info("%s is responsive again", self.name)
        self._changed(self.why)


class HeartbeatMonitor:
    """Judges all connected processes again and again. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._watched: dict[Heartbeats, None] = {}  # in an order that repeats itself

    def watch(
        self, name: str, clocks: Clocks, changed: Callable[[str], None], kill: Callable[[str], None] = lambda _why: None
    ) -> Heartbeats:
        """Watch a process until `forget`."""
        heartbeats = Heartbeats(name, clocks, changed, self._now, kill)
        self._watched[heartbeats] = None
        return heartbeats

    def forget(self, heartbeats: Heartbeats) -> None:
        """The process is gone."""
        self._watched.pop(heartbeats, None)
        heartbeats.end()

    async def run(self) -> None:
        """Look for ever."""
        looked = self._now()
        while True:
            await asyncio.sleep(LOOK)
            looked = self.look(looked)

    def look(self, looked: float) -> float:
        """Judge everybody. `looked`: time of the look before; returns that of this one."""
        now = self._now()
        for heartbeats in list(self._watched):
            if now - looked > LOOK + LATE and heartbeats.at is not None:
                heartbeats.at = now
            heartbeats.judge(now)
        return now
