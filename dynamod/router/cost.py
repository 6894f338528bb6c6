"""What sending a request to a worker costs, as a sum of named terms with weights.

All terms count KV blocks. A term is one entry of TERMS; its weight, its place in decisions and in `dynamo explain`
follow from that. With the weights of `ORIGINAL` the sum is NVIDIA Dynamo's formula of 2025 and later,
`overlap_weight * potential prefill blocks + potential active blocks`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import sub
from typing import Any, NamedTuple

import msgspec

from dynamod.message.errors import UserError

from .overlap import Fetch

_NOTHING = Fetch(0, 0.0)


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
    """What a prompt of `blocks` blocks, a fraction, that fills `whole` of them meets at each of some workers.

    `overlap`: how many of them are cached there. `active`: blocks in use by other requests and not by this one.
    `fetched`: how many would be loaded there, `fetch`: their cost in blocks computed; None where no worker would load
    any.
    """

    workers: Workers
    blocks: float
    whole: int
    overlap: list[int]
    active: list[int]
    fetched: list[int] | None = None
    fetch: list[float] | None = None


def sending(
    workers: Workers,
    blocks: float,
    whole: int,
    overlaps: Mapping[int, int],
    shared: Mapping[int, int],
    fetches: Mapping[int, Fetch],
) -> Sending:
    """A prompt sent to some workers. `overlaps`, `shared`: by worker, how many of its blocks are cached, and in use.

    `fetches`: blocks that would be loaded.
    """
    ids, place, active, overlap = workers.ids, workers.place, workers.active, [0] * len(workers.ids)
    if 2 * len(overlaps) > len(ids):
        overlap = list(map(overlaps.get, ids, repeat(0)))
    else:  # few of many: only those are touched
        for worker in overlaps.keys() & place.keys():
            overlap[place[worker]] = overlaps[worker]
    if shared:
        active = list(map(sub, active, map(shared.get, ids, repeat(0))))
    if not fetches:
        return Sending(workers, blocks, whole, overlap, active)
    loads = [fetches.get(worker, _NOTHING) for worker in ids]
    return Sending(workers, blocks, whole, overlap, active, [one.blocks for one in loads], [one.cost for one in loads])


class Term(NamedTuple):
    """One addend: a Python expression for one worker, its default weight, and its weight in NVIDIA Dynamo's formula.

    The expression may use the worker's `requests`, `queued` and `above` (see Workers), what the prompt meets there:
    `blocks`, `whole`, `overlap`, `active` and `fetch` (see Sending), and `own`: the blocks to compute there.
    `of_prompts`: the overlap weight of a request scales it. `needs`: a field of candidates; where none of them has any,
    the term says nothing, and is not shown.
    """

    formula: str
    weight: float
    original: float
    of_prompts: bool = True
    needs: str = ""


FETCH = "fetch"
"""The term that costs nothing, in time either, as long as no worker would load blocks."""

TERMS: dict[str, Term] = {
    # Blocks of the prompt that the worker does not have.
    "prefill": Term("own", 1.0, 1.0),
    # Blocks of prompts before this one. Part of that queue is over when the request's turn comes: half by default.
    "queued": Term("queued", 0.5, 1.0),
    # Blocks in use with this request. They weigh little: a decode step hardly grows with them.
    "active": Term("active + whole", 0.05, 1.0, of_prompts=False),
    # Cached blocks that would have to go.
    "evicted": Term("above + whole - overlap if above + whole > overlap else 0.0", 0.1, 0.0),
    # What the prefill does to the answers being written there: its blocks times their number.
    "interference": Term("own * requests", 0.05, 0.0),
    # Blocks that it would load (`overlap.OverlapSource`), each as the time that takes by the time to compute it.
    FETCH: Term("fetch", 1.0, 1.0, needs="fetched"),
}
"""The default weights come from replays of recorded and made traces (tools/bench/README.md)."""

Weights = msgspec.defstruct(
    "Weights", [(name, float, term.weight) for name, term in TERMS.items()], frozen=True, forbid_unknown_fields=True
)
"""The weight of each term. Zero leaves a term out."""

Terms = msgspec.defstruct("Terms", [(name, float, 0.0) for name in TERMS], frozen=True, gc=False)
"""A worker's terms before weighing, in the order of TERMS."""

ORIGINAL = Weights(*(term.original for term in TERMS.values()))


def _pass(expression: str, names: str = "", *, loads: bool = False) -> Callable[..., list[Any]]:
    """A function of a Sending that gives the expression for each worker in one pass. `loads`: of blocks, by some.

    Compiled, because a call or a list per term would cost twice as much among thousands of workers.
    """
    columns = "to.workers.requests, to.workers.queued, to.active, to.workers.above, to.overlap"
    rows, here = "requests, queued, active, above, overlap", "overlap"
    if loads:
        columns, rows, here = f"{columns}, to.fetched, to.fetch", f"{rows}, fetched, fetch", "overlap - fetched"
    own = f"for own in [blocks - {here} if overlap < blocks else 0.0]"
    source = f"lambda to, blocks, whole, {names} fetch=0.0: [{expression} for {rows} in zip({columns}) {own}]"
    compiled: Callable[..., list[Any]] = eval(source, {"Terms": Terms, "zip": zip})
    return compiled


_EACH = f"Terms({', '.join(term.formula for term in TERMS.values())})"
_WEIGHTS = "".join(f"weight_{name}, " for name in TERMS)


def _sum(names: Iterable[str]) -> str:
    return " + ".join(f"weight_{name} * ({TERMS[name].formula})" for name in names)


_terms, _terms_with_loads = _pass(_EACH), _pass(_EACH, loads=True)
_totals = _pass(_sum(name for name in TERMS if name != FETCH), _WEIGHTS)
_totals_with_loads = _pass(_sum(TERMS), _WEIGHTS, loads=True)


def terms_of(to: Sending) -> list[msgspec.Struct]:
    """The `Terms` at each worker."""
    return (_terms if to.fetched is None else _terms_with_loads)(to, to.blocks, to.whole)


def totals(to: Sending, weights: Mapping[str, float]) -> list[float]:
    """The cost at each worker, by weights that are `applied`."""
    return (_totals if to.fetched is None else _totals_with_loads)(to, to.blocks, to.whole, *weights.values())


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
