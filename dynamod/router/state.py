"""What a router knows of the workers of its model: their caches, their load, their KV blocks in all.

`WorkerState` takes the events of the workers, `WorkerColumns` has the numbers that a decision reads.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from dynamod.message.discovery import Instance
from dynamod.message.kv_events import (
    Cleared,
    Load,
    PrefillCompleted,
    Removed,
    RequestFinished,
    RequestStarted,
    Snapshot,
    Stored,
    WorkerEvent,
)

from .active import ActiveLoad
from .approx import ApproxIndex
from .cost import Workers
from .index import BlockIndex
from .overlap import Fetch, MakeSource, most
from .settings import RouterSettings

CHANGED = 10_000
"""Changed workers that are remembered for the next decision; there may be none for a long time."""

NO_BOUND = -(1 << 62)
"""`above` of a worker whose cache is not known to have a bound: no prompt makes it evict anything."""
_UNKNOWN = Load(0, 0, 0, 0, 0.0)


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


class WorkerState:
    """`apply` events of workers, `forget` workers that are gone. `now`: monotonic seconds.

    `sources`: of blocks outside the devices.
    `active` also has the requests that were sent from here; the dispatcher's placements start and finish them.
    """

    def __init__(
        self, settings: RouterSettings, block_size: int, now: Callable[[], float], sources: Sequence[MakeSource] = ()
    ) -> None:
        self.settings, self.block_size, self.now = settings, block_size, now
        self.index = BlockIndex()
        self.sources = [make(self.index) for make in sources]
        self.approx = ApproxIndex(settings.ttl)
        self.active = ActiveLoad()
        self.loads: dict[int, Load] = {}
        self.columns = WorkerColumns(self._row)
        self._publishing: set[int] = set()  # workers whose cache events are in the index
        self._thresholds = settings.busy_blocks is not None or settings.busy_prefill is not None

    def apply(self, worker: int, events: Sequence[WorkerEvent], snapshot: bool = False) -> None:
        """Take events of a worker, in order. `snapshot`: they are the first of a subscription and state all of it."""
        if snapshot:
            self.active.drop_published(worker)
        for event in events:
            if isinstance(event, Stored | Removed | Snapshot):
                if self.settings.kv_events:
                    self._publishing.add(worker)
                    self.index.apply(worker, event)
                    self.active.changed.add(worker)
            elif isinstance(event, Cleared):
                self._remove_blocks(worker)
                self.active.changed.add(worker)
            elif isinstance(event, RequestStarted):
                key = (worker, event.request)
                self.active.start(key, worker, event.blocks, event.prefill, self.now(), published=True)
            elif isinstance(event, PrefillCompleted):
                self.active.prefill_completed((worker, event.request))
            elif isinstance(event, RequestFinished):
                self.active.finish((worker, event.request))
            elif isinstance(event, Load):
                if event.total_blocks != self._total(worker):
                    self.active.changed.add(worker)
                self.loads[worker] = event
            elif self.settings.kv_events:
                for source in self.sources:
                    if isinstance(event, source.events):
                        source.apply(worker, event)

    def refresh(self, instances: Sequence[Instance]) -> None:
        """Bring the columns up to date for a decision among these instances."""
        self.columns.follow(instances)
        self.columns.refresh(self.active.changed)
        self.active.changed.clear()

    def forget(self, worker: int) -> None:
        """A worker is gone."""
        self._remove_blocks(worker)
        self.approx.remove_worker(worker)
        self.active.drop(worker)
        self.loads.pop(worker, None)
        self._publishing.discard(worker)
        self.active.changed.add(worker)
        if len(self.active.changed) > CHANGED:
            self.active.changed.clear()
            self.columns = WorkerColumns(self._row)

    def sent(self, worker: int, blocks: Sequence[int]) -> None:
        """A prompt goes to a worker: if that one publishes no cache events, its cache is guessed from this."""
        if blocks and worker not in self._publishing:
            self.approx.sent(worker, blocks, self.now())

    def expire(self) -> None:
        """Forget load that was never released, and guesses that are too old."""
        now = self.now()
        self.active.expire(now)
        self.approx.expire(now)

    def busy(self, worker: int) -> str:
        """Why a worker is to get nothing now; empty when it may."""
        if not self._thresholds:
            return ""
        settings, load, total = self.settings, self.active.of(worker), self._total(worker)
        if settings.busy_blocks is not None and total and load.blocks > settings.busy_blocks * total:
            return f"busy: {load.blocks} of {total} blocks in use"
        if settings.busy_prefill is not None and load.prefill > settings.busy_prefill:
            return f"busy: {load.prefill} prompt tokens to compute"
        return ""

    def overlaps(self, blocks: Sequence[int]) -> dict[int, int]:
        """How many of a prompt's blocks each worker has from the start, by its events or as is guessed."""
        if not blocks:
            return {}
        found = self.index.find(blocks)
        for worker, depth in self.approx.find(blocks, self.now()).items():
            if worker not in self._publishing:
                found[worker] = depth
        return found

    def fetches(self, blocks: Sequence[int], overlaps: Mapping[int, int]) -> Mapping[int, Fetch]:
        """What each worker would load of a prompt, after the `overlaps` with its device."""
        sources = [one for one in self.sources if one] if blocks else ()
        return most([one.find(blocks, overlaps, self.loads) for one in sources]) if sources else {}

    def _remove_blocks(self, worker: int) -> None:
        for source in self.sources:
            source.remove_worker(worker)
        self.index.remove_worker(worker)

    def _total(self, worker: int) -> int:
        return self.loads.get(worker, _UNKNOWN).total_blocks

    def _row(self, worker: int) -> Row:
        load, total = self.active.of(worker), self._total(worker)
        above = self.index.count(worker) - total if total and worker in self._publishing else NO_BOUND
        return Row(load.requests, load.prefill / self.block_size, load.blocks, above, bool(self.busy(worker)))
