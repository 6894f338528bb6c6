"""The instances of a model as columns of numbers, kept up to date: what a decision reads."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from dynamod.message.discovery import Instance

from .cost import Workers

NO_BOUND = -(1 << 62)
"""`above` of a worker whose cache is not known to have a bound: no prompt makes it evict anything."""


class Row(NamedTuple):
    """One worker's numbers (see cost.Workers), and whether it is too busy for any request."""

    requests: int
    queued: float
    active: int
    above: int
    busy: bool


class WorkerColumns:
    """`follow` the instances, `refresh` the rows of workers that have changed, read `all` or `without` some.

    `read(worker)` makes a row; `busy`: workers that get no request now. A row is read again only when its worker has
    changed, and the instances are compared only when they are not the tuple of last time, so that a decision among
    thousands costs no more than its arithmetic.
    """

    def __init__(self, read: Callable[[int], Row]) -> None:
        self._read = read
        self._seen: Sequence[Instance] = ()
        self._rows: dict[int, Row] = {}
        self.all = Workers([], {}, [], [], [], [])
        self.busy: set[int] = set()

    def follow(self, instances: Sequence[Instance]) -> None:
        """Take the instances of the model. The same tuple again costs nothing."""
        if instances is self._seen:
            return
        self._seen = instances if isinstance(instances, tuple) else ()  # a list may change unseen
        workers = {one.instance_id for one in instances}
        if workers == self._rows.keys():
            return
        for worker in self._rows.keys() - workers:
            del self._rows[worker]
            self.busy.discard(worker)
        for worker in workers - self._rows.keys():
            self._rows[worker] = self._row(worker)
        ids = sorted(workers)
        rows = [self._rows[worker] for worker in ids]
        self.all = Workers(
            ids,
            {worker: place for place, worker in enumerate(ids)},
            [row.requests for row in rows],
            [row.queued for row in rows],
            [row.active for row in rows],
            [row.above for row in rows],
        )

    def refresh(self, changed: Collection[int]) -> None:
        """Read the rows of these workers again. Workers that are not followed are ignored."""
        for worker in changed:
            place = self.all.place.get(worker)
            if place is not None:
                row = self._rows[worker] = self._row(worker)
                _, _, requests, queued, active, above = self.all
                requests[place], queued[place], active[place], above[place], _ = row

    def without(self, out: Collection[int]) -> Workers:
        """All but some."""
        if not out:
            return self.all
        return self.all.at([place for place, worker in enumerate(self.all.ids) if worker not in out])

    def _row(self, worker: int) -> Row:
        row = self._read(worker)
        if row.busy:
            self.busy.add(worker)
        else:
            self.busy.discard(worker)
        return row
