"""Options of ours and TensorRT-LLM's own arguments (`--extra-engine-args` as YAML, `engine_args`) as one mapping.

Names are TensorRT-LLM's (`LLM(...)`), which checks them all; its reason is what a user reads. Imports nothing of it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dynamod.message.errors import UserError

from ..adapter.arguments import Names
from ..arguments import add_flag
from ..base import EngineOptions

NAMES = Names(
    engine="trtllm",
    product="TensorRT-LLM",
    help="trtllm-serve --help",
    model="model",
    flags={
        "max_seq_len": ("context_length", "--context-length"),
        "tensor_parallel_size": ("tensor_parallel_size", "--tensor-parallel-size"),
    },
    sizes=("tensor_parallel_size", "pipeline_parallel_size"),
)
EVENTS = 65536
"""Events of KV blocks that TensorRT-LLM keeps until they are read; what does not fit is lost."""
KNOWN: dict[str, Any] = {
    **dict.fromkeys(("max_batch_size", "max_num_tokens", "max_seq_len", "stream_interval"), int),
    **dict.fromkeys(("pipeline_parallel_size", "moe_expert_parallel_size", "gpus_per_node", "max_beam_width"), int),
    **dict.fromkeys(("dtype", "tokenizer_mode", "revision", "load_format", "guided_decoding_backend"), str),
    **dict.fromkeys(("trust_remote_code", "enable_iter_perf_stats", "enable_attention_dp"), bool),
    **dict.fromkeys(("kv_cache_config", "cache_transceiver_config"), dict),
}
"""Arguments that have a flag; all others go into a file for `--extra-engine-args`."""


class _BuildConfig(msgspec.Struct):
    max_seq_len: int | None = None


class _EngineConfig(msgspec.Struct):
    build_config: _BuildConfig = msgspec.field(default_factory=_BuildConfig)


def flags(add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for the arguments that people set."""
    for name, kind in KNOWN.items():
        add_flag(add, [name], kind)


def check(given: Mapping[str, Any], block_size: int | None = None) -> None:
    """Raise UserError for what is wrong whatever the version of TensorRT-LLM."""
    if "model" in given:
        raise UserError("trtllm argument model: the model is named for dynamod", "leave it out here")
    _kv_cache(_named(given), block_size)


def llm_arguments(options: EngineOptions) -> dict[str, Any]:
    """Keywords of `LLM`. Raises UserError for what is given twice."""
    known = _named(options.arguments)  # which there are only TensorRT-LLM knows
    values = NAMES.merged(options, known, {})
    config = _kv_cache(known, options.kv_cache_block_size)
    own: dict[str, Any] = {"enable_iter_perf_stats": True}
    if options.disaggregation_mode != "aggregated":
        own["cache_transceiver_config"] = {"backend": "DEFAULT"}
    return {**own, **values, "skip_tokenizer_init": True, "kv_cache_config": config}


def compiled_length(path: Path) -> int:
    """Tokens that an engine was compiled for, as TensorRT-LLM's own config.json says; 0: it does not."""
    try:
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=_EngineConfig)
    except (OSError, msgspec.MsgspecError):
        return 0
    return config.build_config.max_seq_len or 0


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in given.items()}


def _kv_cache(values: Mapping[str, Any], block_size: int | None) -> dict[str, Any]:
    """`kv_cache_config`, with events where blocks are reused."""
    given = values.get("kv_cache_config") or {}
    if not isinstance(given, Mapping):
        raise UserError("trtllm argument kv_cache_config: a mapping is needed", "for example {tokens_per_block: 32}")
    config = {"event_buffer_max_size": EVENTS if given.get("enable_block_reuse", True) else 0, **given}
    if block_size is not None and config.setdefault("tokens_per_block", block_size) != block_size:
        said = f"{config['tokens_per_block']}, but kv_cache_block_size is {block_size}"
        raise UserError(f"trtllm argument kv_cache_config.tokens_per_block: {said}", "give one of them")
    return config
