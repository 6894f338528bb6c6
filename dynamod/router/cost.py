"""What sending a request to a worker costs, as a sum of named terms with weights.

All terms count KV blocks. With weights (1, 1, 1, 0, 0) it is the original's formula of 2025 and later,
`overlap_weight * potential prefill blocks + potential active blocks`.
"""

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
