"""What sending a request to a worker costs, as a sum of named terms with weights.

All terms count KV blocks. With weights (1, 1, 1, 0, 0) it is the original's formula of 2025 and later,
`overlap_weight * potential prefill blocks + potential active blocks`.
"""

from collections.abc import Sequence

import msgspec

from dynamod.message.errors import UserError


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weight of each term (see `Terms`). Zero leaves a term out.

    The defaults come from replays of recorded and made traces (tests/bench/README.md): a queue weighs less than one's
    own work because part of it is over when the request's turn comes, decoding blocks weigh little because a decode
    step hardly grows with them, interference is what a prefill does to answers that are being written.
    """

    prefill: float = 1.0
    queued: float = 0.5
    active: float = 0.05
    evicted: float = 0.1
    interference: float = 0.05


ORIGINAL = Weights(prefill=1.0, queued=1.0, active=1.0, evicted=0.0, interference=0.0)


class Terms(msgspec.Struct, frozen=True, gc=False):
    """A candidate's terms before weighing.

    `prefill`: blocks of the prompt that the worker does not have. `queued`: blocks of prompts that were sent there and
    are not computed yet. `active`: blocks in use there with this request. `evicted`: cached blocks that would have to
    go. `interference`: own prefill times the requests that are being answered there.
    """

    prefill: float
    queued: float
    active: float
    evicted: float
    interference: float


def total(terms: Terms, weights: Weights, overlap_weight: float = 1.0) -> float:
    """The cost. `overlap_weight` scales all that has to do with prompts: 0 leaves pure balancing of active blocks."""
    prompts = (
        weights.prefill * terms.prefill
        + weights.queued * terms.queued
        + weights.evicted * terms.evicted
        + weights.interference * terms.interference
    )
    return overlap_weight * prompts + (weights.active if overlap_weight else weights.active or 1.0) * terms.active


def totals(
    rows: tuple[Sequence[int], Sequence[float], Sequence[int], Sequence[int]],
    own: float,
    whole: int,
    overlap: int,
    weights: Weights,
    overlap_weight: float,
) -> list[float]:
    """`total` of many workers that have the same `overlap` with a prompt, equal to the last bit.

    `rows`: four columns of equal length: requests, queued blocks times their weight, blocks in use, blocks cached above
    the room for them (below 0: room is left). `own`: blocks of the prompt to compute there; `whole`: blocks it fills.

    The order of the operations is that of `total`, on which the last bit depends.
    """
    requests, queued, active, above = rows
    mine, scale, evicted = weights.prefill * own, overlap_weight, weights.evicted
    use = weights.active if overlap_weight else weights.active or 1.0
    more = whole - overlap
    low = -more
    disturbed = [weights.interference * (own * count) for count in range(max(requests, default=0) + 1)]
    return [
        scale * (mine + wait + evicted * (over + more) + disturbed[count]) + use * (blocks + whole)
        if over > low
        else scale * (mine + wait + disturbed[count]) + use * (blocks + whole)
        for count, wait, blocks, over in zip(requests, queued, active, above)  # noqa: B905 - the check costs
    ]


def weights_of(values: object) -> Weights:
    """Weights from a mapping in a config: `original`, or any of the names. Raises UserError."""
    if values is None:
        return Weights()
    if values == "original":
        return ORIGINAL
    try:
        weights = msgspec.convert(values, Weights, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(Weights.__struct_fields__)
        raise UserError(f"router cost weights: {error}", f"known: {known}; or the word original") from None
    for name in Weights.__struct_fields__:
        value = getattr(weights, name)
        if not 0 <= value < float("inf"):
            raise UserError(f"router cost weight {name} is {value}", "give a number from 0 up")
    return weights
