"""Faults of pooled workers, which somebody starts and ends: they do not start, or do not end."""

import asyncio
import random as random_module
from collections.abc import Callable

from dynamod.actor import Normal, Reason

from .cluster import Cluster
from .places import Node, Place
from .shape import Event

CANNOT = "it does not start, which is a fault"
"""What a worker says that does not become ready."""

Until = Callable[[float, Callable[[], object]], None]
"""End a fault after so many seconds, or when all is healed."""

Ended = Callable[[str, int, bool], None]
"""A worker's process, its open requests, and whether it ends of its own accord."""


class CannotStart(Exception):
    """A worker does not become ready. `permanent`: another start cannot help."""

    def __init__(self, *, permanent: bool) -> None:
        super().__init__(CANNOT)
        self.permanent = permanent


class WorkerTroubles:
    """What pooled workers do before they are ready and when they are to go. `startup`: seconds, on average.

    `came_up()`: one is about to be ready. `ended`: one ends. `failed`: the one at a place of that name does not start.
    `patient`: a drain has so much time that only the end of the fault ends it.
    """

    def __init__(
        self,
        cluster: Cluster,
        random: random_module.Random,
        startup: float,
        came_up: Callable[[], None],
        ended: Ended,
        failed: Callable[[str], None],
        *,
        patient: bool = False,
    ) -> None:
        self._cluster, self._random, self._startup = cluster, random, startup
        self._came_up, self._ended, self._failed, self._patient = came_up, ended, failed, patient
        self._starts: list[tuple[str, int | None]] = []  # why workers do not start, and on which node
        self._drains: list[str] = []  # how drains do not end
        cluster.starting, cluster.draining, cluster.ending = self._starting, self._draining, self._ending

    def do_not_start(self, event: Event, node: Node, until: Until) -> None:
        """New workers, on one node or on all."""
        how = ("permanent", "crash", "permanent", "hang")[int(event.which * 4)]
        trouble = (how, node.number if event.other < 0.5 else None)
        self._starts.append(trouble)
        until(event.lasts, lambda: self._starts.remove(trouble))

    def do_not_end(self, event: Event, until: Until) -> None:
        """Workers that are to go: one has no end, one does not listen, one does not even end when it is told again."""
        how = ("open", "deaf", "hard")[int(event.which * 3)]
        self._drains.append(how)
        until(event.lasts, lambda: self._drains.remove(how))

    async def _starting(self, place: Place) -> None:
        await asyncio.sleep(self._startup * (0.5 + self._random.random()))
        while how := next((how for how, node in self._starts if node in (None, place.node)), ""):
            if how != "hang":
                self._failed(place.name)
                raise CannotStart(permanent=how == "permanent")
            await asyncio.sleep(0.1)
        self._came_up()

    def _ending(self, place: Place, reason: Reason) -> None:
        node, process, worker = self._cluster.nodes[place.node], place.process, place.worker
        if process is None or worker is None or node.ending or not node.alive or not process.alive:
            return
        self._ended(process.name, worker.open_requests, isinstance(reason, Normal))

    async def _draining(self, place: Place) -> None:
        if not self._drains:
            return
        how, process, worker = self._drains[-1], place.process, place.worker
        assert process is not None
        assert worker is not None
        self._cluster.log("drain", f"{process.name} does not end: {how}")
        if how == "open":
            worker.leave()
        try:
            while self._drains or not self._patient:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            if how == "hard" and process.alive:
                self._cluster.log("process", f"{process.name} is killed while it drains")
                self._cluster.ended(process)
            raise
