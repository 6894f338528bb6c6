"""The events that a worker publishes about its KV cache, its requests and its load.

A router subscribes by a stream of its own (`message.worker.Subscribe`). Each item of that stream is one `pack`ed tuple
of the events below; the first is the state at that moment, the later ones are changes. The stream's offsets show what
is lost; then the router subscribes again.

The worker publishes its load, not the routers to each other: all requests of a worker are known there, however many
ingress processes there are.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dynamod.message import newer


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored", gc=False):
    """Blocks that follow each other, after block `parent` (None: from the start of a prompt).

    `blocks`: the engine's own names; `local`: local hashes (kvcache.hashes) of the same blocks. All unsigned 64 bit.
    For our own engines the name of a block is its sequence hash.
    """

    parent: int | None
    blocks: tuple[int, ...]
    local: tuple[int, ...]


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed", gc=False):
    """Blocks, by the engine's names, that are not in the cache any more."""

    blocks: tuple[int, ...]


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared", gc=False):
    """The cache is empty now."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="holds", gc=False):
    """Blocks that are there, in no order: the engine's own names, and the sequence hashes of the same blocks."""

    blocks: tuple[int, ...]
    hashes: tuple[int, ...]


CacheEvent = Stored | Removed | Cleared | Snapshot

Medium = Literal["CPU_PINNED", "DISK"]
"""A tier below the device, by NVIDIA Dynamo's names: memory of the host, files."""


class TierStored(msgspec.Struct, frozen=True, array_like=True, tag="tier", gc=False):
    """Sequence hashes of blocks, in no order, that can be had from a tier from now on."""

    medium: Medium
    blocks: tuple[int, ...]


class TierRemoved(msgspec.Struct, frozen=True, array_like=True, tag="untier", gc=False):
    """Blocks that a tier does not have any more."""

    medium: Medium
    blocks: tuple[int, ...]


TierEvent = TierStored | TierRemoved


class RequestStarted(msgspec.Struct, frozen=True, array_like=True, tag="began", gc=False):
    """A request has come (not published to the process that sent it).

    `request`: a number of the worker's own. `blocks`: sequence hashes of its prompt's full blocks. `prefill`: prompt
    tokens that were not in the worker's cache when it came.
    """

    request: int
    blocks: tuple[int, ...]
    prefill: int


class PrefillCompleted(msgspec.Struct, frozen=True, array_like=True, tag="computed", gc=False):
    """The request's first token is there: its prompt is no load any more."""

    request: int


class RequestFinished(msgspec.Struct, frozen=True, array_like=True, tag="ended", gc=False):
    """The request is over."""

    request: int


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load", gc=False):
    """The engine's own count: sequences running and waiting, KV blocks in use and in all, rate of prefix hits.

    Also what a block takes, as measured, 0 where that is not known: to compute it, to load it from memory of the host,
    from files, and from another worker that has it stored. `move_ms`: what a prompt takes beyond computing it when one
    worker computes it and another answers: at the first from its last block until the reader has all, at the second
    what was lost where no connection came about.
    """

    running: int
    waiting: int
    active_blocks: int
    total_blocks: int
    hit_rate: float
    prefill_ms: float = 0.0
    host_ms: float = 0.0
    disk_ms: float = 0.0
    peer_ms: float = 0.0
    move_ms: float = 0.0


class ScheduledRequests(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a step of the engine computes. None: the engine does not know.

    Prompts: how many, tokens that are computed, variance of their lengths, tokens that are in the KV cache already.
    Answers that get a token: how many, tokens in the KV cache, variance of these. Names of `ForwardPassMetrics` v1.
    """

    num_prefill_requests: Annotated[int | None, Meta(description="Prompts that the step computes.")] = None
    sum_prefill_tokens: Annotated[int | None, Meta(description="Prompt tokens that the step computes.")] = None
    var_prefill_length: Annotated[float | None, Meta(description="Variance of the lengths of these prompts.")] = None
    sum_prefill_kv_tokens: Annotated[int | None, Meta(description="Tokens of these prompts in the KV cache.")] = None
    num_decode_requests: Annotated[int | None, Meta(description="Answers that get a token.")] = None
    sum_decode_kv_tokens: Annotated[int | None, Meta(description="Tokens of these answers in the KV cache.")] = None
    var_decode_kv_tokens: Annotated[
        float | None, Meta(description="Variance of the tokens of these answers in the KV cache.")
    ] = None


class QueuedRequests(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What waits meanwhile. None: the engine does not know.

    Prompts: how many, tokens, also tokens that may be cached, variance of their lengths. Answers that gave way to
    others: how many, tokens that they need in the KV cache, variance of these.
    """

    num_prefill_requests: Annotated[int | None, Meta(description="Prompts that wait.")] = None
    sum_prefill_tokens: Annotated[
        int | None, Meta(description="Tokens of waiting prompts, cached tokens included.")
    ] = None
    var_prefill_length: Annotated[float | None, Meta(description="Variance of the lengths of waiting prompts.")] = None
    num_decode_requests: Annotated[int | None, Meta(description="Answers that gave way to other answers.")] = None
    sum_decode_kv_tokens: Annotated[int | None, Meta(description="Tokens that these answers need in the KV cache.")] = (
        None
    )
    var_decode_kv_tokens: Annotated[
        float | None, Meta(description="Variance of the tokens that these answers need.")
    ] = None


class ForwardPass(msgspec.Struct, frozen=True, array_like=True, tag="step", gc=False):
    """A step of the engine, number `counter_id` of rank `dp_rank`; not all are published.

    `wall_time`: seconds that it took; 0: the rank is idle. `running_prefill_tokens`: what is left to compute of prompts
    that have begun. NVIDIA Dynamo's form has a version (1) and the worker's name alongside these.
    """

    counter_id: Annotated[int, Meta(description="Number of the step.")]
    wall_time: Annotated[
        float, Meta(description="Time that the step took; 0: the rank is idle.", extra={"unit": "seconds"})
    ]
    scheduled_requests: ScheduledRequests = ScheduledRequests()
    queued_requests: QueuedRequests = QueuedRequests()
    dp_rank: int = 0
    running_prefill_tokens: Annotated[
        int | None, Meta(description="Tokens that are left to compute of prompts that have begun.")
    ] = None


WorkerEvent = CacheEvent | TierEvent | RequestStarted | PrefillCompleted | RequestFinished | Load | ForwardPass

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[WorkerEvent, ...])
_sizes = newer.sizes(WorkerEvent)
_WHAT = "an event of a worker"


def pack(items: tuple[WorkerEvent, ...]) -> bytes:
    """One item of a subscription's stream."""
    return _encoder.encode(items)


def unpack(data: bytes) -> tuple[WorkerEvent, ...]:
    """The events of one item, without those of kinds that a newer release has.

    Raises msgspec.ValidationError or DecodeError.
    """
    try:
        events: tuple[WorkerEvent, ...] = _decoder.decode(data)
    except msgspec.ValidationError:
        events = newer.known(newer.untyped(data), WorkerEvent, _WHAT)
    for part in newer.parts(data) if events else ():
        newer.count_fields(part, _sizes, _WHAT)
    return events
