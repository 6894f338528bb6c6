"""The engine's own arguments (`--extra-engine-args`, `engine_args` in YAML), checked. Imports nothing heavy."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..arguments import Arguments

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

MOST_SEQS = 256
"""Sequences that llama.cpp can distinguish (its LLAMA_MAX_SEQ)."""


class LlamaCppArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names are llama.cpp's, or vLLM's where it has none.

    `block_size`: tokens of a block of the prefix cache, the card's `kv_cache_block_size`. `n_ctx`: KV cells, one per
    token, of all sequences together; or `num_blocks` of `block_size` cells. None: four whole contexts if a quarter of
    the free memory has room for them. `max_num_seqs`: sequences that run at a time. `max_num_batched_tokens`: tokens of
    a step. `step_seconds`: what a step of prompts beside running answers should take; prompts are cut accordingly.
    `max_cached_seqs`: ends of finished answers that the prefix cache keeps apart. `n_gpu_layers`: -1 is all.
    `n_threads`: None is OMP_NUM_THREADS, else one per core; `n_threads_batch`: for prompts, None is the same.
    `swa_full`: a sliding window keeps all cells, which the prefix cache needs; else it is off for such models.
    `flash_attn`, `cache_type_k`, `cache_type_v`, `use_mmap`, `use_mlock`, `n_ubatch`, `offload_kqv`: as in llama.cpp.
    """

    block_size: Annotated[int, Meta(ge=1, le=4096)] = 16
    n_ctx: _Count | None = None
    num_blocks: _Count | None = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=MOST_SEQS)] = 32
    max_num_batched_tokens: _Count = 512
    step_seconds: Annotated[float, Meta(gt=0, le=60)] = 0.5
    enable_prefix_caching: bool = True
    max_cached_seqs: Annotated[int, Meta(ge=1, le=MOST_SEQS)] = 96
    n_ubatch: _Count = 512
    n_threads: _Count | None = None
    n_threads_batch: _Count | None = None
    n_gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    offload_kqv: bool = True
    flash_attn: bool | Literal["auto"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    swa_full: bool = True
    use_mmap: bool = True
    use_mlock: bool = False


ALIASES = {
    "n_batch": "max_num_batched_tokens",
    "n_parallel": "max_num_seqs",
    "n_seq_max": "max_num_seqs",
    "num_gpu_blocks": "num_blocks",
    "num_gpu_blocks_override": "num_blocks",
    "flash_attention": "flash_attn",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
    "mlock": "use_mlock",
}
"""Other names that people know."""

_ARGUMENTS = Arguments("llamacpp", LlamaCppArguments, ALIASES)
flags = _ARGUMENTS.flags


def arguments_of(given: Mapping[str, Any], block_size: int | None = None) -> LlamaCppArguments:
    """Check arguments; keys may be spelled with `-`. `block_size`: `kv_cache_block_size`, where a user has set that.

    Raises UserError that names the key and the known ones.
    """
    made = _ARGUMENTS.read(given, block_size)
    if made.n_ctx is not None and made.num_blocks is not None:
        raise _ARGUMENTS.wrong("num_blocks", "given beside n_ctx, which is the same in cells: give one of them")
    if made.n_ctx is not None and made.n_ctx <= made.block_size:
        raise _ARGUMENTS.wrong("n_ctx", f"{made.n_ctx} cells are not even two blocks of {made.block_size}")
    if made.max_num_batched_tokens < made.max_num_seqs:
        why = f"{made.max_num_batched_tokens}: each of max_num_seqs {made.max_num_seqs} sequences needs one per step"
        raise _ARGUMENTS.wrong("max_num_batched_tokens", why)
    if made.flash_attn is False and made.cache_type_v not in ("f32", "f16", "bf16"):
        raise _ARGUMENTS.wrong("cache_type_v", f"{made.cache_type_v} needs flash_attn")
    return made
