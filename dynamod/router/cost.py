"""What sending a request to a worker costs, as a sum of named terms with weights.

All terms count KV blocks. A term is one entry of TERMS; its weight, its place in decisions and in `dynamo explain`
follow from that. With the weights of `ORIGINAL` the sum is the original's formula of 2025 and later,
`overlap_weight * potential prefill blocks + potential active blocks`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
    """One addend: a Python expression for one worker, its default weight, and its weight in the original's formula.

    The expression may use the worker's `requests`, `queued`, `active` and `above` (see Workers), and what the prompt
    meets there: `own`, `new`, `whole` (see Sending). `of_prompts`: the overlap weight of a request scales it.
    """

    formula: str
    weight: float
    original: float
    of_prompts: bool = True


TERMS: dict[str, Term] = {
    # Blocks of the prompt that the worker does not have.
    "prefill": Term("own", 1.0, 1.0),
    # Blocks of prompts before this one. Part of that queue is over when the request's turn comes: half by default.
    "queued": Term("queued", 0.5, 1.0),
    # Blocks in use with this request. They weigh little: a decode step hardly grows with them.
    "active": Term("active + whole", 0.05, 1.0, of_prompts=False),
    # Cached blocks that would have to go.
    "evicted": Term("above + new if above + new > 0 else 0.0", 0.1, 0.0),
    # What the prefill does to the answers being written there: its blocks times their number.
    "interference": Term("own * requests", 0.05, 0.0),
}
"""The default weights come from replays of recorded and made traces (tests/bench/README.md)."""

Weights = msgspec.defstruct(
    "Weights", [(name, float, term.weight) for name, term in TERMS.items()], frozen=True, forbid_unknown_fields=True
)
"""The weight of each term. Zero leaves a term out."""

Terms = msgspec.defstruct("Terms", [(name, float) for name in TERMS], frozen=True, gc=False)
"""A worker's terms before weighing, in the order of TERMS."""

ORIGINAL = Weights(*(term.original for term in TERMS.values()))


def _pass(expression: str, names: str = "") -> Callable[..., list[Any]]:
    """A function of a Sending that gives the expression for each worker in one pass.

    Compiled, because a call or a list per term would cost twice as much among thousands of workers.
    """
    columns = "to.workers.requests, to.workers.queued, to.active, to.workers.above, to.own, to.new"
    row = "requests, queued, active, above, own, new"
    source = f"lambda to, whole, {names}: [{expression} for {row} in zip({columns})]"
    compiled: Callable[..., list[Any]] = eval(source, {"Terms": Terms, "zip": zip})
    return compiled


_terms = _pass(f"Terms({', '.join(term.formula for term in TERMS.values())})")
_totals = _pass(
    " + ".join(f"weight_{name} * ({term.formula})" for name, term in TERMS.items()),
    ", ".join(f"weight_{name}" for name in TERMS),
)


def terms_of(to: Sending) -> list[msgspec.Struct]:
    """The `Terms` at each worker."""
    return _terms(to, to.whole)


def totals(to: Sending, weights: Mapping[str, float]) -> list[float]:
    """The cost at each worker, by weights that are `applied`."""
    return _totals(to, to.whole, *weights.values())


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
