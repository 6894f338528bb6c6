"""What is vLLM's own among the arguments: names of ours, defaults."""

from collections.abc import Callable, Mapping
from typing import Any

from dynamod.kvcache.tier_settings import TierSettings
from dynamod.message.errors import UserError

from ..adapter.arguments import Names, has_tokenizer, show
from ..adapter.tiers import split
from ..base import EngineOptions

NAMES = Names(
    engine="vllm",
    product="vLLM",
    help="vllm serve --help=all",
    model="model",
    flags={
        "max_model_len": ("context_length", "--context-length"),
        "block_size": ("kv_cache_block_size", "--kv-cache-block-size"),
        "tensor_parallel_size": ("tensor_parallel_size", "--tensor-parallel-size"),
        "nnodes": ("num_nodes", "--num-nodes"),
        "node_rank": ("node_rank", "--node-rank"),
    },
    sizes=("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
)
PREFILL_CONTEXT = "prefill_context_parallel_size"
"""Another factor of the number of GPUs."""


def config_paths(options: EngineOptions) -> dict[str, Any]:
    """Where tokenizer and configuration are when they are not next to the weights."""
    path = options.config_path
    return {} if path is None else {"hf_config_path": str(path), "tokenizer": str(path)}


def leader(values: Mapping[str, Any], address: str) -> dict[str, Any]:
    """`values` with the leader's HOST:PORT, if there is one. Raises UserError when it is given otherwise too."""
    host, _, port = address.rpartition(":")
    ours = {"master_addr": host.strip("[]"), "master_port": int(port)} if address else {}
    for name, value in ours.items():
        if values.get(name, value) != value:
            raise UserError(f"vllm argument {name}: {values[name]}, but --leader-addr is {address}", "give one of them")
    return {**values, **ours}


def over_nodes(values: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """`values` with all GPUs of all nodes for one engine that runs on several, where no size of it is given.

    `devices`: GPUs that each node gives, 0 on CPUs, which count as one. Leader and followers come to the same size if
    none of them is told, and none has more GPUs than another.
    """
    nodes = int(values.get("nnodes") or 1)
    if nodes == 1 or any(name in values for name in (*NAMES.sizes, PREFILL_CONTEXT)):
        return {**values}
    return {**values, "tensor_parallel_size": nodes * max(1, devices)}


def _needs_ray(values: Mapping[str, Any], devices: int | None) -> bool:
    """VLLM itself refuses a world that is larger than its node, though a Ray cluster may have what it lacks."""
    world = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size", PREFILL_CONTEXT):
        world *= int(values.get(name) or 1)
    return devices is not None and world > devices


def defaults(
    values: Mapping[str, Any],
    *,
    sockets: str,
    kv_bytes: int = 0,
    cpu: bool = False,
    devices: int | None = None,
    ray: bool = False,
) -> dict[str, Any]:
    """`values` with what is better here than vLLM's own defaults, where nothing is given.

    Tokens go in and out: a tokenizer is needed for forms of answers only, and read where there is one. On a CPU
    compiling takes half a minute of the start, and more at the first request with logprobs. `sockets`: beginning of the
    paths of those for KV events. `kv_bytes`: for the KV cache, 0: vLLM's own. `devices`: GPUs of this node, None: not
    counted; `ray`: it is installed.
    """
    events = {
        "enable_kv_cache_events": values.get("enable_prefix_caching") is not False,
        "publisher": "zmq",
        # A rank adds its number to what follows the colon, if "tcp" is in the address: so each has its own.
        "endpoint": f"ipc://{sockets}-tcp-events:1",
        "replay_endpoint": f"ipc://{sockets}-tcp-replay:1",
        "topic": "kv",
    }
    own = {
        "skip_tokenizer_init": not has_tokenizer(values.get("tokenizer") or values.get("model")),
        "disable_log_stats": True,
        "kv_events_config": events,
    }
    if values.get("nnodes", 1) > 1:
        own["distributed_executor_backend"] = "mp"
    elif ray and _needs_ray(values, devices):
        own["distributed_executor_backend"] = "ray"
    if cpu:
        own["enforce_eager"] = True
    if kv_bytes:
        own["kv_cache_memory_bytes"] = kv_bytes
    return {**own, **values}


def check(given: Mapping[str, Any], _block_size: int | None = None) -> TierSettings:
    """The tiers. Raises UserError for tiers that cannot be, independent of other arguments."""
    return split(NAMES, given)[0]


def flags(add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for each of vLLM's own flags: to show them."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    show(AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False)), add)
