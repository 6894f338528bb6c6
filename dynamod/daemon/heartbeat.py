"""Which connected processes are slow or stuck: heartbeats, the reports of engines, and what the kernel shows."""

import asyncio
import logging
import time
from collections.abc import Callable

from dynamod.message.node import Heartbeat
from dynamod.runtime.liveness import ENDLESS, Clocks, Signs, Verdict, judge

from .evidence import SAMPLE_INTERVAL_S, Evidence

log = logging.getLogger("dynamod.daemon")

LOOK = 0.1
"""Seconds between two looks at all processes."""
LATE = 0.5
"""A look that comes so much later says that the daemon itself was held up: it judges no process by that time."""
SUSPICION = 0.25
"""Share of a clock after which the kernel is asked about a process."""


def _ignore(_why: str) -> None:
    """No process is killed."""


class Heartbeats:
    """The heartbeats of one process, from the first one on.

    `changed(verdict)`: the process became slow or stuck, or, with an empty verdict, is well again. `kill(why)`: it has
    been stuck for too long. `evidence`: what the kernel shows of it.
    """

    def __init__(
        self,
        name: str,
        clocks: Clocks,
        changed: Callable[[Verdict], None],
        now: Callable[[], float],
        *,
        kill: Callable[[str], None] = _ignore,
        evidence: Evidence,
    ) -> None:
        self.name, self.clocks = name, clocks
        self.verdict = Verdict()
        self.last = Heartbeat()
        self._changed, self._now, self._kill, self._evidence = changed, now, kill, evidence
        self._since = 0.0  # when it became stuck
        self.at: float | None = None
        self._step: float | None = None  # when the engine's step began, or last made progress

    @property
    def age(self) -> float | None:
        """Seconds since the last message; None before the first heartbeat."""
        return self._now() - self.at if self.at is not None else None

    @property
    def progress_age(self) -> float | None:
        """Seconds since the last progress: of the engine's step, between steps of the process."""
        return self._now() - self._step if self._step is not None else self.age

    @property
    def why(self) -> str:
        """Why it counts as stuck; empty when it does not."""
        return self.verdict.why if self.verdict.state == "stuck" else ""

    def sign(self) -> None:
        """Any message is a sign of life, once there was a heartbeat."""
        if self.at is not None:
            self.at = self._now()
            self.judge(self.at)

    def beat(self, beat: Heartbeat) -> None:
        """A heartbeat."""
        self.at = self._now()
        self.last = beat
        self._step = self.at - beat.step if beat.step is not None else None
        self.judge(self.at)

    def end(self) -> None:
        """The process is gone: it is neither slow nor stuck."""
        self.at = None
        if self.verdict.state:
            self.verdict = Verdict()
            self._changed(self.verdict)

    def judge(self, now: float) -> None:
        """Decide, and report what has changed."""
        if self.at is None:
            return
        before, self.verdict = self.verdict, judge(self.clocks, self._signs(now, self.at))
        state, why = self.verdict
        if before.state == state == "stuck" and now - self._since > self.clocks.until_kill:
            self._since = now
            self._kill(why)
        if before.state == state:
            return
        if state == "stuck":
            self._since = now
            log.warning("%s has been %s: it gets no requests until it responds", self.name, why)
        elif state == "slow":
            log.warning("%s is slow, %s: new requests go to other instances, if there are any", self.name, why)
        else:
            log.info("%s is %s again", self.name, "fast" if before.state == "slow" else "responsive")
        self._changed(self.verdict)

    def _signs(self, now: float, at: float) -> Signs:
        quiet, clocks, evidence = now - at, self.clocks, self._evidence
        step = now - self._step if self._step is not None else None
        if quiet > SUSPICION * clocks.heartbeat or (step is not None and step > SUSPICION * clocks.stall):
            evidence.look(now, min(SAMPLE_INTERVAL_S, SUSPICION * clocks.heartbeat))
        else:
            evidence.forget()
        idle, unread = (ENDLESS if seen is None else now - seen for seen in (evidence.worked, evidence.read))
        return Signs(quiet, step, self.last.tokens, self.last.usual, idle, unread)


class HeartbeatMonitor:
    """Judges all connected processes again and again. `now`: monotonic seconds.

    `kernel`: whether the processes are those of this machine, so that the kernel shows whether they work.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, *, kernel: bool = True) -> None:
        self._now, self._kernel = now, kernel
        self._watched: dict[Heartbeats, None] = {}  # in an order that repeats itself

    def watch(
        self,
        name: str,
        clocks: Clocks,
        changed: Callable[[Verdict], None],
        *,
        kill: Callable[[str], None] = _ignore,
        pid: int = 0,
    ) -> Heartbeats:
        """Watch a process until `forget`. `pid` 0: the kernel shows nothing of it."""
        evidence = Evidence(pid if self._kernel else 0)
        heartbeats = Heartbeats(name, clocks, changed, self._now, kill=kill, evidence=evidence)
        self._watched[heartbeats] = None
        return heartbeats

    def forget(self, heartbeats: Heartbeats) -> None:
        """The process is gone."""
        self._watched.pop(heartbeats, None)
        heartbeats.end()

    async def run(self) -> None:
        """Look again and again."""
        looked = self._now()
        while True:
            await asyncio.sleep(LOOK)
            looked = self.look(looked)

    def look(self, looked: float) -> float:
        """Judge every process. `looked`: time of the look before; returns that of this one."""
        now = self._now()
        for heartbeats in list(self._watched):
            if now - looked > LOOK + LATE and heartbeats.at is not None:
                heartbeats.at = now
            heartbeats.judge(now)
        return now
