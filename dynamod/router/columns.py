"""The ready instances of a model as columns of numbers, kept up to date: what a decision among thousands reads."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dynamod.message.discovery import Instance

from .cost import Weights, totals
from .decision import KEPT
from .policy import overloaded

NO_BOUND = -(1 << 62)
"""`above` of a worker whose cache is not known to have a bound: no prompt makes it evict anything."""


SAMPLE = 64
"""Workers that are asked for the usual overlap with a prompt: any guess is right, a good one is fast."""


FEW = 100
"""Workers for which it is cheaper to count the blocks in use than to find out whether that matters."""


class Row(NamedTuple):
    """The part of a worker's cost that does not depend on the prompt (see cost.totals), and whether it is busy."""

    requests: int
    queued: float
    active: int
    above: int
    busy: bool


class Ask(NamedTuple):
    """A prompt of `blocks` blocks, which fills `whole`; how its terms weigh; and who cannot have it."""

    blocks: float
    whole: int
    weights: Weights
    scale: float
    out: Collection[int]


class WorkerColumns:
    """`follow` the instances, `refresh` the rows of workers that have changed. `ids` ascend; `place` has their places.

    `row(worker)` makes a row. The columns may be read, not changed.
    """

    def __init__(self, row: Callable[[int], Row]) -> None:
        self._row = row
        self._seen: Sequence[Instance] = ()
        self._rows: dict[int, Row] = {}
        self.ids: list[int] = []
        self.place: dict[int, int] = {}
        self.requests: list[int] = []
        self.queued: list[float] = []
        self.active: list[int] = []
        self.above: list[int] = []
        self.busy: set[int] = set()
        self.unready: dict[int, str] = {}  # instance -> its state

    def follow(self, instances: Sequence[Instance]) -> None:
        """Take the instances of the model. The same tuple again costs nothing."""
        if instances is self._seen:
            return
        self._seen = instances if isinstance(instances, tuple) else ()  # a list may change unseen
        ready = {one.instance_id for one in instances if one.state == "ready"}
        self.unready = {}
        if len(ready) < len(instances):
            self.unready = {one.instance_id: one.state for one in instances if one.state != "ready"}
        if ready == self._rows.keys():
            return
        for worker in self._rows.keys() - ready:
            del self._rows[worker]
            self.busy.discard(worker)
        for worker in ready - self._rows.keys():
            self._rows[worker] = self._read(worker)
        rows = self._rows
        self.ids = sorted(ready)
        self.place = {worker: place for place, worker in enumerate(self.ids)}
        ordered = [rows[worker] for worker in self.ids]
        self.requests = [row.requests for row in ordered]
        self.queued = [row.queued for row in ordered]
        self.active = [row.active for row in ordered]
        self.above = [row.above for row in ordered]

    def refresh(self, changed: Collection[int]) -> None:
        """Read the rows of these workers again; others than those that are followed pass."""
        for worker in changed:
            place = self.place.get(worker)
            if place is not None:
                row = self._rows[worker] = self._read(worker)
                self.requests[place], self.queued[place], self.active[place], self.above[place], _ = row

    def totals(self, ask: Ask, overlaps: Mapping[int, int]) -> list[float]:
        """The cost of each worker (see cost.total) if none used any of the prompt's blocks now: see `share`.

        `overlaps`: how many of them workers have, of others it is none. Workers with the same overlap are one run
        through the columns: nearly all have none, or the same (a system prompt).
        """
        usual = 0
        if 2 * len(overlaps) > len(self.ids):
            depths = list(overlaps.values())
            usual = Counter(depths[:: 1 + len(depths) // SAMPLE]).most_common(1)[0][0]
        columns = (self.requests, self.queued, self.active, self.above)
        found = totals(columns, max(0.0, ask.blocks - usual), ask.whole, usual, ask.weights, ask.scale)
        place = self.place
        groups: dict[int, list[int]] = {}
        for worker, depth in [one for one in overlaps.items() if one[1] != usual]:
            if worker in place:
                groups.setdefault(depth, []).append(place[worker])
        if usual and not overlaps.keys() >= place.keys():
            groups[0] = [place[worker] for worker in place.keys() - overlaps.keys()]
        for depth, places in groups.items():
            self._again(found, ask, depth, places, [self.active[one] for one in places])
        return found

    def share(
        self,
        found: list[float],
        ask: Ask,
        overlaps: Mapping[int, int],
        users: Collection[int],
        sharing: Callable[[Iterable[int]], Mapping[int, int]],
        everybody: bool,
    ) -> None:
        """Make the costs `found` right for `users`, who use some of the prompt's blocks now: `sharing` counts how many.

        That takes long and can only lower a cost, so it is done for those alone that can become one of the KEPT best
        (among calm ones, see policy.crowded, and among all, without busy ones and those tried), if there are more than
        FEW. `everybody`: for all.
        """
        use = ask.weights.active if ask.scale else ask.weights.active or 1.0
        if not users or not use:
            return
        place = self.place
        if everybody or len(users) <= FEW:
            near = [worker for worker in users if worker in place]
        else:
            bound = self._bound(found, ask.out)
            bound += use * ask.whole + abs(bound) * 1e-9  # with room for rounding
            near = [worker for worker, cost in zip(self.ids, found, strict=True) if cost <= bound and worker in users]
        groups: dict[int, list[tuple[int, int]]] = {}
        for worker, shared in sharing(near).items():
            one = place[worker]
            groups.setdefault(overlaps.get(worker, 0), []).append((one, self.active[one] - shared))
        for depth, pairs in groups.items():
            self._again(found, ask, depth, [one for one, _ in pairs], [left for _, left in pairs])

    def _bound(self, found: Sequence[float], out: Collection[int]) -> float:
        """A cost that at least KEPT of those who may be chosen do not exceed, if there are so many."""
        costs, requests = found, self.requests
        if out:
            stay = [place for place, worker in enumerate(self.ids) if worker not in out]
            costs, requests = [found[place] for place in stay], [requests[place] for place in stay]
        if max(requests) > (most := overloaded(requests)):
            calm = sorted([cost for cost, count in zip(costs, requests, strict=True) if count <= most])
            if len(calm) >= KEPT:
                return calm[KEPT - 1]  # among all it can only be lower
            return max(calm[-1], sorted(costs)[min(KEPT, len(costs)) - 1])
        return sorted(costs)[min(KEPT, len(costs)) - 1]

    def _again(self, found: list[float], ask: Ask, depth: int, places: Sequence[int], active: Sequence[int]) -> None:
        """Costs of the workers at some places, who have `depth` blocks of the prompt."""
        columns = (
            [self.requests[one] for one in places],
            [self.queued[one] for one in places],
            active,
            [self.above[one] for one in places],
        )
        costs = totals(columns, max(0.0, ask.blocks - depth), ask.whole, depth, ask.weights, ask.scale)
        for one, cost in zip(places, costs, strict=True):
            found[one] = cost

    def _read(self, worker: int) -> Row:
        row = self._row(worker)
        if row.busy:
            self.busy.add(worker)
        else:
            self.busy.discard(worker)
        return row


def best_of(ids: Sequence[int], ranks: Sequence[float], chosen: int) -> list[int]:
    """The KEPT ids of the lowest rank (without ranks: the first), one of them `chosen`, in their order."""
    if len(ids) <= KEPT:
        return list(ids)
    kept = list(ids[:KEPT])
    if ranks:
        last = sorted(ranks)[KEPT - 1]
        near = [place for place, rank in enumerate(ranks) if rank <= last]
        near.sort(key=ranks.__getitem__)
        kept = [ids[place] for place in near[:KEPT]]
    if chosen not in kept:
        kept[-1] = chosen
    return sorted(kept)
