"""What sending a request to a worker costs, as a sum of named terms with weights.

All terms count KV blocks. A term is one entry of TERMS; its weight, its place in decisions and in `dynamo explain`
follow from that. With the weights of `ORIGINAL` the sum is the original's formula of 2025 and later,
`overlap_weight * potential prefill blocks + potential active blocks`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dynamod.message.errors import UserError


class Workers(NamedTuple):
    """What is known of some workers, as columns with a place for each; `ids` ascend, `place` has the place of an id.

    `requests`: being answered there. `queued`: blocks of prompts that were sent there and are not computed yet.
    `active`: blocks in use. `above`: cached blocks above the room for them; below 0 there is room.
    """

    ids: list[int]
    place: Mapping[int, int]
    requests: list[int]
    queued: list[float]
    active: list[int]
    above: list[int]

    def at(self, places: Sequence[int]) -> "Workers":
        """The workers at some ascending places."""
        ids = [self.ids[place] for place in places]
        return Workers(
            ids,
            {worker: place for place, worker in enumerate(ids)},
            [self.requests[place] for place in places],
            [self.queued[place] for place in places],
            [self.active[place] for place in places],
            [self.above[place] for place in places],
        )


class Sending(NamedTuple):
    """What a prompt that fills `whole` blocks meets at each of some workers.

    `own`: blocks of it to compute there, a fraction because a prompt rarely ends with a block. `new`: blocks to find
    room for. `active`: blocks in use by other requests and not by this one.
    """

    workers: Workers
    whole: int
    own: Sequence[float]
    new: Sequence[int]
    active: Sequence[int]


def sending(
    workers: Workers, blocks: float, whole: int, overlaps: Mapping[int, int], shared: Mapping[int, int]
) -> Sending:
    """A prompt of `blocks` blocks that fills `whole`, sent to each of some workers.

    `overlaps`: by worker, how many of the prompt's blocks are cached there; `shared`: how many others use there now.
    """
    ids, place, active = workers.ids, workers.place, workers.active
    own, new = [blocks] * len(ids), [whole] * len(ids)
    if 2 * len(overlaps) > len(ids):  # most have some of it
        depths = [overlaps.get(worker, 0) for worker in ids]
        own = [blocks - depth if depth < blocks else 0.0 for depth in depths]
        new = [whole - depth for depth in depths]
    else:
        for worker in overlaps.keys() & place.keys():
            at, depth = place[worker], overlaps[worker]
            own[at], new[at] = max(0.0, blocks - depth), whole - depth
    if shared:
        active = active.copy()
        for worker in shared.keys() & place.keys():
            active[place[worker]] -= shared[worker]
    return Sending(workers, whole, own, new, active)


class Term(NamedTuple):
    """One addend. `weigh(sending, weight)` is the term of each worker times the weight.

    `weight`: the default. `original`: in the original's formula. `of_prompts`: the overlap weight scales it.
    """

    weigh: Callable[[Sending, float], Sequence[float]]
    weight: float
    original: float
    of_prompts: bool = True


def _prefill(to: Sending, weight: float) -> Sequence[float]:
    """Blocks of the prompt that the worker does not have."""
    return [weight * own for own in to.own]


def _queued(to: Sending, weight: float) -> Sequence[float]:
    """Blocks of prompts before this one. Part of that queue is over when the request's turn comes: half by default."""
    return [weight * queued for queued in to.workers.queued]


def _active(to: Sending, weight: float) -> Sequence[float]:
    """Blocks in use with this request. They weigh little: a decode step hardly grows with them."""
    more = weight * to.whole
    return [weight * active + more for active in to.active]


def _evicted(to: Sending, weight: float) -> Sequence[float]:
    """Cached blocks that would have to go."""
    return [
        weight * (above + new) if above + new > 0 else 0.0
        for above, new in zip(to.workers.above, to.new)  # noqa: B905 - the check costs
    ]


def _interference(to: Sending, weight: float) -> Sequence[float]:
    """What the prefill does to the answers being written there: its blocks times their number."""
    return [weight * own * count for own, count in zip(to.own, to.workers.requests)]  # noqa: B905 - the check costs


TERMS: dict[str, Term] = {
    "prefill": Term(_prefill, 1.0, 1.0),
    "queued": Term(_queued, 0.5, 1.0),
    "active": Term(_active, 0.05, 1.0, of_prompts=False),
    "evicted": Term(_evicted, 0.1, 0.0),
    "interference": Term(_interference, 0.05, 0.0),
}
"""The default weights come from replays of recorded and made traces (tests/bench/README.md)."""

Weights = msgspec.defstruct(
    "Weights", [(name, float, term.weight) for name, term in TERMS.items()], frozen=True, forbid_unknown_fields=True
)
"""The weight of each term. Zero leaves a term out."""

Terms = msgspec.defstruct("Terms", [(name, float) for name in TERMS], frozen=True, gc=False)
"""A worker's terms before weighing, in the order of TERMS."""

ORIGINAL = Weights(*(term.original for term in TERMS.values()))


def applied(weights: msgspec.Struct, overlap_weight: float) -> dict[str, float]:
    """The weight of each term for one request.

    `overlap_weight` scales the terms that have to do with prompts: 0 leaves pure balancing of active blocks.
    """
    found = {}
    for name, term in TERMS.items():
        weight: float = getattr(weights, name)
        found[name] = weight * overlap_weight if term.of_prompts else weight
    if not overlap_weight:
        found["active"] = found["active"] or 1.0
    return found


def totals(to: Sending, weights: Mapping[str, float]) -> list[float]:
    """The cost at each worker, by weights that are `applied`."""
    columns = [TERMS[name].weigh(to, weight) for name, weight in weights.items() if weight]
    return list(map(sum, zip(*columns, strict=True))) if columns else [0.0] * len(to.own)


def weights_of(values: object) -> msgspec.Struct:
    """Weights from a mapping in a config: `original`, or any of the names. Raises UserError."""
    if values is None:
        return Weights()
    if values == "original":
        return ORIGINAL
    try:
        weights = msgspec.convert(values, Weights, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"router cost weights: {error}", f"known: {', '.join(TERMS)}; or the word original") from None
    for name in TERMS:
        value = getattr(weights, name)
        if not 0 <= value < float("inf"):
            raise UserError(f"router cost weight {name} is {value}", "give a number from 0 up")
    return weights
