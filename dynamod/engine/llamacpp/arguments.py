"""The engine's own arguments (`--extra-engine-args`, `engine_args` in YAML), checked. Imports nothing heavy."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from dynamod.kvcache.tier_settings import NO_CACHE, TierSettings, with_environment

from ..arguments import Arguments

_Positive = Annotated[float, Meta(gt=0)]
_Share = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Pooling = Literal["mean", "cls", "last"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

MOST_SEQS = 256
"""Sequences that llama.cpp can distinguish (its LLAMA_MAX_SEQ)."""
MOST_TEXT = 127
"""Bytes of a key, or of a value, of the metadata."""


class LlamaCppArguments(TierSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names are llama.cpp's, or vLLM's where it has none.

    `block_size`: tokens of a block of the prefix cache, the card's `kv_cache_block_size`. `n_ctx`: KV cells, one per
    token, of all sequences together; or `num_blocks` of `block_size` cells. None: four contexts up to 8,192 cells, else
    one, if a quarter of the free memory has room. `max_num_seqs`: sequences that run at a time.
    `max_num_batched_tokens`: tokens of a step. `step_seconds`: what a step of prompts alongside running answers should
    take; prompts are cut accordingly.
    `split_tail`: what comes after the last full block of a prompt gets a step of its own; where whole states are handed
    off, its last token. So it is computed where the blocks are imported, and logits depend on how a prompt is cut: with
    it both give the same bits.
    `stepwise_continuation`: the tokens of an answer that continues here are computed one by one, as they were. That
    takes as long as answering, and gives the bits of an answer that was never interrupted; else another token may be
    drawn.
    `max_cached_seqs`: ends of finished answers that the prefix cache keeps apart. `idle_tokens`: KV cells of finished
    requests that are kept in any case. More are kept while prompts ask for evicted ones: on a CPU each cell in use
    makes steps slower. `n_gpu_layers`: -1 is all.
    `n_threads`: None is OMP_NUM_THREADS, else one per core; `n_threads_batch`: for prompts, None is the same.
    `swa_full`: a sliding window keeps all cells, which the prefix cache needs; else it is off for such models.
    `rope_scale` (or `rope_freq_scale`, one by it): the context may be so many times as long as the model was made for.
    `tensor_split`, `override_tensor`, `kv_overrides`: lists, or llama.cpp's text ("3,1"; "PATTERN=BUFFER,...";
    "KEY=TYPE:VALUE,..."). Overrides of the metadata reach llama.cpp alone: the tokenizer and the card are the file's.
    `repack`: the weights are stored in the layout that suits the matrix instructions of the processor. None: they are,
    unless llama.cpp is built for Intel AMX, whose kernels end the process (SIGSEGV) at the first step of some machines.
    `embeddings`: it makes vectors of texts, and no answers. `pooling`: how the vector of a text comes from those of its
    tokens; None: as the file says. The longest text, and what is computed at once, is `max_num_batched_tokens` or the
    context, up to 8,192 tokens, whichever is more; `flash_attn` auto is then off while memory allows it. `matryoshka`:
    the first numbers of a vector are a vector too.
    All others: as in llama.cpp; None is what it takes on its own, or what the model says.
    """

    block_size: Annotated[int, Meta(ge=1, le=4096)] = 16
    n_ctx: _Count | None = None
    num_blocks: _Count | None = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=MOST_SEQS)] = 32
    max_num_batched_tokens: _Count = 512
    step_seconds: Annotated[float, Meta(gt=0, le=60)] = 0.5
    split_tail: bool = False
    stepwise_continuation: bool = False
    enable_prefix_caching: bool = True
    idle_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 2048
    max_cached_seqs: Annotated[int, Meta(ge=1, le=MOST_SEQS)] = 96
    n_ubatch: _Count = 512
    n_threads: _Count | None = None
    n_threads_batch: _Count | None = None
    n_gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    split_mode: Literal["none", "layer", "row", "tensor"] | None = None
    main_gpu: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    tensor_split: list[_Share] | str | None = None
    override_tensor: list[str] | str = ""
    cpu_moe: bool = False
    n_cpu_moe: Annotated[int, Meta(ge=0, le=10_000)] = 0
    kv_overrides: list[str] | str = ""
    offload_kqv: bool = True
    flash_attn: bool | Literal["auto", "on", "off"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    swa_full: bool = True
    rope_scaling: Literal["none", "linear", "yarn"] | None = None
    rope_scale: _Positive | None = None
    rope_freq_base: _Positive | None = None
    rope_freq_scale: _Positive | None = None
    yarn_orig_ctx: _Count | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None
    use_mmap: bool = True
    use_mlock: bool = False
    repack: bool | None = None
    embeddings: bool = False
    pooling: Pooling | None = None
    matryoshka: bool = False

    @property
    def stretch(self) -> float:
        """How many times as long as trained a context may be."""
        scale = self.rope_scale or 1 / (self.rope_freq_scale or 1.0)
        return 1.0 if self.rope_scaling == "none" else max(1.0, scale)

    @property
    def flash(self) -> bool | None:
        """Whether flash attention is on; None: where it can be."""
        return {"auto": None, "on": True, "off": False}.get(str(self.flash_attn), bool(self.flash_attn))


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
    "ctx_size": "n_ctx",
    "threads": "n_threads",
    "threads_batch": "n_threads_batch",
    "batch_size": "max_num_batched_tokens",
    "ubatch_size": "n_ubatch",
    "parallel": "max_num_seqs",
    "ngl": "n_gpu_layers",
    "gpu_layers": "n_gpu_layers",
    "override_kv": "kv_overrides",
    "embedding": "embeddings",
}
"""Other names that people know."""

_GENERATING = (
    *("block_size", "n_ctx", "num_blocks", "n_ubatch", "step_seconds", "split_tail", "stepwise_continuation"),
    *("enable_prefix_caching", "idle_tokens", "max_cached_seqs", "swa_full", *TierSettings.__struct_fields__),
)
"""Without effect where no answers are made."""
_EMBEDDING = ("pooling", "matryoshka")

_ARGUMENTS = Arguments("llamacpp", LlamaCppArguments, ALIASES)
_DEFAULTS = LlamaCppArguments()
flags = _ARGUMENTS.flags


def arguments_of(given: Mapping[str, Any], block_size: int | None = None) -> LlamaCppArguments:
    """Check arguments; keys may be spelled with `-`. `block_size`: `kv_cache_block_size`, where a user has set that.

    Raises UserError that names the key and the known ones.
    """
    plain = _ARGUMENTS.read(given, block_size)
    for name in _GENERATING if plain.embeddings else _EMBEDDING:
        if getattr(plain, name) != getattr(_DEFAULTS, name):
            why = "has no effect with embeddings" if plain.embeddings else "has an effect with embeddings only"
            raise _ARGUMENTS.wrong(name, why)
    if plain.embeddings:
        return _checked(plain)
    made = _checked(_ARGUMENTS.read(with_environment(given), block_size))
    if (problem := made.problem()) is not None:
        raise _ARGUMENTS.wrong(*problem)
    if made.tiered and not made.enable_prefix_caching:
        raise _ARGUMENTS.wrong("enable_prefix_caching", NO_CACHE)
    if made.n_ctx is not None and made.num_blocks is not None:
        raise _ARGUMENTS.wrong("num_blocks", "given together with n_ctx, which is the same in cells: give one of them")
    if made.n_ctx is not None and made.n_ctx <= made.block_size:
        raise _ARGUMENTS.wrong("n_ctx", f"{made.n_ctx} cells are not even two blocks of {made.block_size}")
    return made


def _checked(made: LlamaCppArguments) -> LlamaCppArguments:
    """What holds whether it makes answers or vectors."""
    if made.max_num_batched_tokens < made.max_num_seqs:
        why = f"{made.max_num_batched_tokens}: each of max_num_seqs {made.max_num_seqs} sequences needs one per step"
        raise _ARGUMENTS.wrong("max_num_batched_tokens", why)
    if made.rope_scale is not None and made.rope_freq_scale is not None:
        why = "given together with rope_scale, which is one by it: give one of them"
        raise _ARGUMENTS.wrong("rope_freq_scale", why)
    for one in items(made.override_tensor):
        if not all(one.partition("=")):
            raise _ARGUMENTS.wrong("override_tensor", f"{one!r} is not of the form PATTERN=BUFFER")
    for one in items(made.kv_overrides):
        key_value(one)
    if made.tensor_split is not None:
        shares(made.tensor_split)
    if made.flash is False and made.cache_type_v not in ("f32", "f16", "bf16"):
        raise _ARGUMENTS.wrong("cache_type_v", f"{made.cache_type_v} needs flash_attn")
    return made


def items(given: list[str] | str) -> list[str]:
    """A list that may be written as one text, with commas between."""
    return given if isinstance(given, list) else [one for one in given.split(",") if one]


def shares(given: list[float] | str) -> list[float]:
    """`tensor_split`. Raises UserError."""
    try:
        found = given if isinstance(given, list) else [float(one) for one in given.replace("/", ",").split(",")]
    except ValueError:
        raise _ARGUMENTS.wrong("tensor_split", f"{given!r} is no list of numbers, for example 3,1") from None
    if any(one < 0 for one in found) or not sum(found):
        raise _ARGUMENTS.wrong("tensor_split", f"{given!r} are no shares of a model")
    return found


def key_value(text: str) -> tuple[str, int | float | bool | str]:
    """A key of the metadata and its value, from one of `kv_overrides`. Raises UserError."""
    key, _, typed = text.partition("=")
    kind, _, value = typed.partition(":")
    readers: dict[str, Callable[[str], int | float | bool | str]]
    readers = {"int": int, "float": float, "bool": {"true": True, "false": False}.__getitem__, "str": str}
    try:
        found = readers[kind](value)
    except (KeyError, ValueError):
        raise _ARGUMENTS.wrong("kv_overrides", f"{text!r} is not of the form KEY=int|float|bool|str:VALUE") from None
    if not key or max(len(key.encode()), len(value.encode())) > MOST_TEXT:
        raise _ARGUMENTS.wrong("kv_overrides", f"{text[:40]!r}: key and value have 1 to {MOST_TEXT} bytes")
    return key, found
