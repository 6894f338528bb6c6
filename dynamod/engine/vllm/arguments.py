"""Options of ours and arguments of vLLM's own (`--extra-engine-args`, `engine_args`, words behind `--`) as one mapping.

Names are vLLM's; vLLM checks the values, and its reason is what a user reads. Imports nothing of it by itself.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from dynamod.message.errors import UserError
from dynamod.message.hints import near

from ..base import EngineOptions

FLAGS = {
    "max_model_len": ("context_length", "--context-length"),
    "block_size": ("kv_cache_block_size", "--kv-cache-block-size"),
    "tensor_parallel_size": ("tensor_parallel_size", "--tensor-parallel-size"),
}
"""Arguments that have a flag of ours: the option, and the flag."""


def merged(options: EngineOptions, known: Collection[str], words: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by vLLM's names: those that were given, and what our options say. `words`: read by vLLM's own parser.

    Raises UserError for an unknown name, one that is given twice, and one that disagrees with a flag of ours.
    """
    values: dict[str, Any] = {}
    for key, value in [(key, value) for key, value in options.arguments.items() if key != "argv"] + [*words.items()]:
        name = key.replace("-", "_")
        if name not in known:
            hint = f"{near(name, known)}vLLM's arguments are those of `vllm serve --help=all`"
            raise UserError(f"vllm argument {key}: vLLM has no such argument", hint)
        if values.get(name, value) != value:
            raise UserError(f"vllm argument {key}: {value!r}, but it is given as {values[name]!r} too", "give it once")
        values[name] = value
    if "model" in values:
        raise UserError("vllm argument model: the model is named for dynamod", "leave it out of vLLM's arguments")
    for name, (option, flag) in FLAGS.items():
        ours = getattr(options, option)
        if ours is None or (option == "tensor_parallel_size" and ours == 1):
            continue
        if values.setdefault(name, ours) != ours:
            raise UserError(f"vllm argument {name}: {values[name]}, but {flag} is {ours}", "give one of them")
    values["model"] = str(options.path)
    if options.config_path is not None:  # for weights in a GGUF file
        values.setdefault("hf_config_path", str(options.config_path))
        values.setdefault("tokenizer", str(options.config_path))
    return values


def defaults(values: Mapping[str, Any], *, sockets: str, kv_bytes: int = 0, cpu: bool = False) -> dict[str, Any]:
    """`values` with what is better here than vLLM's own defaults, where nothing is given.

    Tokens go in and out, so it needs no tokenizer. On a CPU compiling takes half a minute of the start, and more at
    the first request with logprobs. `sockets`: beginning of the paths of those for KV events. `kv_bytes`: for the KV
    cache, 0: vLLM's own.
    """
    events = {
        "enable_kv_cache_events": values.get("enable_prefix_caching") is not False,
        "publisher": "zmq",
        # A rank adds its number to what stands behind the colon, if "tcp" is in the address: so each has its own.
        "endpoint": f"ipc://{sockets}-tcp-events:1",
        "replay_endpoint": f"ipc://{sockets}-tcp-replay:1",
        "topic": "kv",
    }
    own = {"skip_tokenizer_init": True, "disable_log_stats": True, "kv_events_config": events}
    if cpu:
        own["enforce_eager"] = True
    if kv_bytes:
        own["kv_cache_memory_bytes"] = kv_bytes
    return {**own, **values}


def listened(endpoint: str | None, rank: int) -> str | None:
    """Where to connect to hear what rank `rank` publishes at an address to bind; None when it binds none."""
    if not endpoint or not ("*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")):
        return None
    address, _, port = endpoint.replace("*", "127.0.0.1").rpartition(":")
    if not port.isdigit() or port == "0":
        return None if rank or endpoint.startswith("tcp") else endpoint
    return f"{address}:{int(port) + rank}"


def parsed(parser: Any, words: Sequence[str]) -> dict[str, Any]:
    """What stands in `words`, read by vLLM's parser; nothing that is only a default. Raises UserError."""

    def error(message: str) -> NoReturn:
        raise UserError(f"vllm: {message}", "the words behind -- are vLLM's own, see `vllm serve --help=all`")

    parser.error = error
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # what is not given does not appear
    return dict(vars(parser.parse_args(list(words))))


def devices(environ: Mapping[str, str], base: int, values: Mapping[str, Any]) -> str | None:
    """CUDA_VISIBLE_DEVICES for an engine that begins at GPU `base` of those there are; None: as it is.

    Raises UserError when they are known and too few.
    """
    if not base:
        return None
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    count = 1
    for name in sizes:
        count *= int(values.get(name) or 1)
    given = environ.get("CUDA_VISIBLE_DEVICES")
    there = given.split(",") if given else [str(number) for number in range(base + count)]
    if len(chosen := there[base : base + count]) < count:
        raise UserError(
            f"--base-gpu-id {base}: {count} GPUs from there on, and there are {len(there)}", "see nvidia-smi"
        )
    return ",".join(chosen)


def flags(add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for each of vLLM's own flags: to show them."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for action in AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))._actions:
        if action.option_strings:
            add(*action.option_strings, dest=action.dest, metavar=action.metavar, help=action.help)
