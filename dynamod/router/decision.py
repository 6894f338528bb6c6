"""A routing decision as a record: what `dynamo explain` shows, what replays and shadow policies compare."""

from collections import OrderedDict
from typing import Any

import msgspec

from dynamod.observe.bounded import bounded

KEPT = 16
"""The most candidates, and the most instances that could not take the request, that a decision keeps."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One worker as the router saw it. `overlap`: blocks of the prompt that it had, `fetched`: further ones to load.

    `total`: the weighted cost, `terms`: what it is made of (cost.Terms); 0 and None for policies without costs.
    """

    instance: int
    overlap: int
    requests: int
    total: float = 0.0
    terms: msgspec.Struct | None = None
    fetched: int = 0


_UNKNOWN = Candidate(0, 0, 0)


class Decision(msgspec.Struct, frozen=True):
    """Why a request went where it went.

    `candidates`: all up to KEPT, of more the best and the chosen one; `left_out` counts the others. The best have the
    lowest total, in modes that know no costs the fewest requests; in modes that know no load they are the first.
    `excluded` has KEPT at most, `more_excluded` counts the others. `rule` names what decided; `tied` are those
    of the candidates here among which chance decided. `regret`: blocks of locality given away, compared with the one
    that had most (`most_overlap`). `pool`: of the instances. `shadow`: what another policy would have chosen.
    `at`: seconds since 1970. `notes`: what features have decided about the request or say of it, by the name of the
    note: a struct or a text. `reads`: blocks from the start of the prompt that the chosen worker reads from another
    worker; 0: none.
    """

    request: str
    model: str
    mode: str
    at: float
    tokens: int
    block_size: int
    candidates: tuple[Candidate, ...]
    chosen: int
    rule: str
    tied: tuple[int, ...] = ()
    excluded: tuple[tuple[int, str], ...] = ()
    weights: msgspec.Struct | None = None  # cost.Weights
    overlap_weight: float = 1.0
    temperature: float = 0.0
    shadow: int | None = None
    shadow_mode: str = ""
    left_out: int = 0
    more_excluded: int = 0
    most_overlap: int = 0
    pool: str = ""
    notes: dict[str, Any] = {}
    reads: int = 0

    @property
    def overlap(self) -> int:
        """Blocks of the prompt that the chosen worker had."""
        return self._taken.overlap

    @property
    def fetched(self) -> int:
        """Blocks after these that it would load."""
        return self._taken.fetched

    @property
    def present(self) -> int:
        """Blocks from the start of the prompt that it does not compute: it has them, loads them, or reads them."""
        taken = self._taken
        return self.reads or taken.overlap + taken.fetched

    @property
    def _taken(self) -> Candidate:
        """The candidate that was chosen."""
        for one in self.candidates:
            if one.instance == self.chosen:
                return one
        return _UNKNOWN

    @property
    def regret(self) -> int:
        """Blocks of locality given away."""
        return self.most_overlap - self.overlap


class DecisionLog:
    """The last `capacity` requests' decisions; a request has several when it has several choices or was sent again."""

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._requests: OrderedDict[str, list[Decision]] = OrderedDict()
        bounded(self, "kept decisions", capacity, len, "requests")

    def add(self, decision: Decision) -> None:
        """Keep a decision."""
        request = _whole(decision.request)
        known = self._requests.get(request)
        if known is not None:
            known.append(decision)
            return
        self._requests[request] = [decision]
        if len(self._requests) > self._capacity:
            self._requests.popitem(last=False)

    def note(self, decision: Decision, name: str, note: msgspec.Struct) -> None:
        """Add a note to a decision that is kept."""
        known = self._requests.get(_whole(decision.request), [])
        for place, other in enumerate(known):
            if other is decision:
                known[place] = msgspec.structs.replace(decision, notes={**decision.notes, name: note})

    def of(self, request: str) -> list[Decision]:
        """All decisions for a request, in order; empty when it is not known (any more)."""
        return list(self._requests.get(_whole(request), ()))

    def all(self) -> list[Decision]:
        """All decisions that are kept, the oldest request first."""
        return [decision for decisions in self._requests.values() for decision in decisions]

    def __len__(self) -> int:
        return len(self._requests)


def _whole(request: str) -> str:
    """The client's request of which this is a choice (`id#1`)."""
    head, mark, choice = request.rpartition("#")
    return head if mark and choice.isdigit() else request
