"""Whether what a controller proposes is done now, and with which processes. Pure: the caller has the clock."""

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from dynamod.message.pools import Pool, Replica

from .observation import WorkerLoad
from .settings import PlannerSettings

BACKOFF, LONGEST = 30.0, 600.0
"""Seconds until workers are started again that did not become ready; twice as long each time."""

ATTEMPTS = 5
"""After so many times in a row nothing is started any more, until `resume`."""

Refusal = Literal[
    "",
    "disabled",
    "paused",
    "manual",
    "scaling_in_progress",
    "worker_count_mismatch",
    "workers_fail",
    "no_devices",
]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas`: processes that the node is to run, None: as it is. `leave`: those that go first, by number.

    `refused`: why what was proposed is not done, or not all of it.
    """

    replicas: int | None = None
    leave: tuple[int, ...] = ()
    refused: Refusal = ""


def starting(pool: Pool, ready: Collection[int]) -> int:
    """Processes of the node that will be ready, or are without having been seen yet. `ready`: leases."""
    return sum(one.state not in ("Draining", "Fatal") and one.lease not in ready for one in pool.replicas)


class Reconciler:
    """`paused`, `manual`: nothing is changed until `resume`; the second when somebody else changed the number."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
        self.paused = self.manual = self.in_progress = False
        self.failures, self._retry = 0, 0.0
        self._own: int | None = None  # what the node was to run, as far as we know
        self._ready: Collection[int] | None = None

    def resume(self) -> None:
        """Take over again, from what there is."""
        self.paused = self.manual = False
        self._own, self.failures, self._retry = None, 0, 0.0

    def decide(self, now: float, target: int, pool: Pool, loads: Mapping[int, WorkerLoad]) -> Action:
        """`target`: ready and starting workers in all. `loads`: of the ready ones, by lease, also of other nodes."""
        settled, self._ready = self._ready is None or self._ready == loads.keys(), loads.keys()
        failed = [one for one in pool.replicas if one.state == "Fatal"]
        here = {one.lease for one in pool.replicas}
        expected = len(loads) + starting(pool, loads.keys())
        if self.in_progress:
            return Action(refused="scaling_in_progress" if target != expected else "")
        if self._own is None:
            self._own = pool.wanted
        self.manual = self.manual or pool.wanted != self._own
        elsewhere = sum(lease not in here for lease in loads)
        wanted = max(0, target - elsewhere)
        if not failed and wanted == pool.wanted:
            return Action(refused="manual" if self.manual and target != expected else "")
        if why := self._held():
            return Action(refused=why)
        if failed:
            return self._drop(now, pool, failed)
        if wanted > pool.wanted:
            return self._more(now, wanted, pool)
        if not settled:
            return Action(refused="worker_count_mismatch")
        return self._less(wanted, pool, loads)

    def _held(self) -> Refusal:
        if self.settings.no_operation or self.settings.advisory:
            return "disabled"
        return "paused" if self.paused else "manual" if self.manual else ""

    def _drop(self, now: float, pool: Pool, failed: Collection[Replica]) -> Action:
        """Give up those that did not become ready; others are started in their place after a while."""
        self.failures += 1
        self._retry = now + min(LONGEST, BACKOFF * 2 ** (self.failures - 1))
        self._own = pool.wanted - len(failed)
        return Action(replicas=self._own, leave=tuple(one.replica for one in failed), refused="workers_fail")

    def _more(self, now: float, wanted: int, pool: Pool) -> Action:
        if now < self._retry or self.failures >= ATTEMPTS:
            return Action(refused="workers_fail")
        free = wanted if pool.free is None else pool.wanted + pool.free
        if free <= pool.wanted:
            return Action(refused="no_devices")
        self._own = min(wanted, free)
        return Action(replicas=self._own, refused="no_devices" if free < wanted else "")

    def _less(self, wanted: int, pool: Pool, loads: Mapping[int, WorkerLoad]) -> Action:
        """Those that are not ready go first, then those with the fewest KV tokens."""
        here = [one for one in pool.replicas if one.state != "Draining"]
        here.sort(key=lambda one: (one.lease in loads, _tokens(loads.get(one.lease)), -one.replica))
        self._own = wanted
        return Action(replicas=wanted, leave=tuple(one.replica for one in here[: len(here) - wanted]))

    def came_up(self) -> None:
        """A worker has become ready."""
        self.failures, self._retry = 0, 0.0

    def failed_to_scale(self) -> None:
        """What was decided could not be done: whatever there is now is the start."""
        self._own = None


def _tokens(load: WorkerLoad | None) -> int:
    return load.context + load.queued_prefill if load is not None else 0
