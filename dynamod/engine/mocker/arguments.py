"""The mocker's own arguments (`--extra-engine-args`, `engine_args` in YAML), checked."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from dynamod.kvcache.tier_settings import NO_CACHE, TierSettings, with_environment

from ..arguments import Arguments
from .timing import TimingName

_Count = Annotated[int, Meta(ge=1)]


KvTransfer = Literal["worker", "pull", "rendezvous"]


class SchedulerSettings(TierSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the scheduler needs to know. Names and defaults are those of NVIDIA Dynamo's `mocker/protocols.rs`.

    `block_size`, `max_num_batched_tokens` (of one iteration) in tokens, `num_gpu_blocks` in blocks. `max_num_seqs`:
    sequences that run at a time. `watermark`: share of the blocks that admission leaves free. `enable_prefix_caching`:
    blocks are kept for later. `enable_chunked_prefill`: a prompt may be computed in parts. `preemption_mode`: which
    sequence gives way when the blocks are used up, the newest (lifo) or the oldest (fifo). `kv_bytes_per_token`: bytes
    of a block for each token, in a tier or for another worker. `host_gbps`, `disk_gbps`: how fast blocks come from
    tiers, in gigabytes per second. Tiers have no bytes here, so `kv_disk_path` has no effect, and a restart empties the
    tiers.
    """

    block_size: _Count = 64
    num_gpu_blocks: _Count = 16384
    max_num_seqs: _Count = 256
    max_num_batched_tokens: _Count = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    preemption_mode: Literal["lifo", "fifo"] = "lifo"
    kv_bytes_per_token: Annotated[int, Meta(ge=1, le=2**24)] = 64
    host_gbps: Annotated[float, Meta(gt=0)] = 20.0
    disk_gbps: Annotated[float, Meta(gt=0)] = 2.0

    @property
    def takes_room(self) -> bool:
        """Tiers have no bytes here."""
        return False

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
    takes. `timing`: a key of `timing.TIMINGS`. `seed`: for requests without one. `transfer_gbps`: how fast blocks come
    from another worker, in gigabytes per second; 0: as fast as the bytes come. `kv_transfer`: what moves them: the
    worker, or the mocker itself as real engines do, by `pull` as vLLM, or by `rendezvous` as SGLang, whose decode
    workers compute no prompts. `embedding_length`: numbers of a vector.
    """

    speedup_ratio: Annotated[float, Meta(ge=0)] = 1.0
    dp_size: Annotated[int, Meta(ge=1, le=64)] = 1
    startup_time: Annotated[float, Meta(ge=0)] | None = None
    timing: TimingName = "later"
    seed: int = 0
    transfer_gbps: Annotated[float, Meta(ge=0)] = 0.0
    kv_transfer: KvTransfer = "worker"
    embedding_length: Annotated[int, Meta(ge=1, le=65536)] = 64


_ARGUMENTS = Arguments("mocker", MockerArguments)
flags = _ARGUMENTS.flags


def scheduler_settings(given: Mapping[str, Any]) -> SchedulerSettings:
    """Those of a scheduler alone. Raises UserError as `arguments_of` does."""
    return Arguments("mocker", SchedulerSettings).read(given, None)


def arguments_of(given: Mapping[str, Any], block_size: int | None = None) -> MockerArguments:
    """Check arguments; keys may be spelled with `-`. `block_size`: `kv_cache_block_size`, where a user has set that.

    Raises UserError that names the key and the known ones.
    """
    if given.get("timing") == 2025:  # YAML reads a number
        given = {**given, "timing": "2025"}
    made = _ARGUMENTS.read(with_environment(given), block_size)
    if not made.room:
        why = f"{made.watermark:g} of num_gpu_blocks {made.num_gpu_blocks} leaves no block to use"
        raise _ARGUMENTS.wrong("watermark", why)
    if made.tiered and not made.enable_prefix_caching:
        raise _ARGUMENTS.wrong("enable_prefix_caching", NO_CACHE)
    return made
