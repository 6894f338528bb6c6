"""The mocker's own arguments (`--extra-engine-args`, `engine_args` in YAML), checked."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..arguments import Arguments
from .timing import TimingName

_Count = Annotated[int, Meta(ge=1)]


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the scheduler needs to know. Names and defaults are those of the original's `mocker/protocols.rs`.

    `block_size`, `max_num_batched_tokens` (of one iteration) in tokens, `num_gpu_blocks` in blocks. `max_num_seqs`:
    sequences that run at a time. `watermark`: share of the blocks that admission leaves free. `enable_prefix_caching`:
    blocks are kept for later. `enable_chunked_prefill`: a prompt may be computed in parts. `preemption_mode`: who gives
    way when the blocks are used up, the newest (lifo) or the oldest (fifo).
    """

    block_size: _Count = 64
    num_gpu_blocks: _Count = 16384
    max_num_seqs: _Count = 256
    max_num_batched_tokens: _Count = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    preemption_mode: Literal["lifo", "fifo"] = "lifo"

    @property
    def usable_blocks(self) -> int:
        """Blocks that admission may use."""
        return int(self.num_gpu_blocks * (1 - self.watermark))

    @property
    def room(self) -> int:
        """Tokens that one sequence may have in all: the blocks that admission may use."""
        return self.usable_blocks * self.block_size


class MockerArguments(SchedulerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scheduler's settings and those of the engine around it.

    `speedup_ratio`: 2 is twice as fast as the real engine, 0 does not wait at all. `dp_size`: data-parallel ranks, each
    with `num_gpu_blocks` and steps of its own; the worker itself places requests. `startup_time`: seconds that loading
    takes. `timing`: a key of `timing.TIMINGS`. `seed`: for requests without one. `kv_bytes_per_token`: size of what is
    handed to another worker, `transfer_gbps`: how fast, in gigabytes per second; 0: as fast as the bytes come.
    `kv_transfer`: who moves that: the worker, or the mocker itself as real engines do, by `pull` as vLLM, or by
    `rendezvous` as SGLang, whose decode workers compute no prompts.
    """

    speedup_ratio: Annotated[float, Meta(ge=0)] = 1.0
    dp_size: Annotated[int, Meta(ge=1, le=64)] = 1
    startup_time: Annotated[float, Meta(ge=0)] | None = None
    timing: TimingName = "later"
    seed: int = 0
    kv_bytes_per_token: Annotated[int, Meta(ge=1, le=2**24)] = 64
    transfer_gbps: Annotated[float, Meta(ge=0)] = 0.0
    kv_transfer: Literal["worker", "pull", "rendezvous"] = "worker"


_ARGUMENTS = Arguments("mocker", MockerArguments)
flags = _ARGUMENTS.flags


def arguments_of(given: Mapping[str, Any], block_size: int | None = None) -> MockerArguments:
    """Check arguments; keys may be spelled with `-`. `block_size`: `kv_cache_block_size`, where a user has set that.

    Raises UserError that names the key and the known ones.
    """
    if given.get("timing") == 2025:  # YAML reads a number
        given = {**given, "timing": "2025"}
    made = _ARGUMENTS.read(given, block_size)
    if not made.room:
        why = f"{made.watermark:g} of num_gpu_blocks {made.num_gpu_blocks} leaves no block to use"
        raise _ARGUMENTS.wrong("watermark", why)
    return made
