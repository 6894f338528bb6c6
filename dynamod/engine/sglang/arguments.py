"""What is SGLang's own among the arguments: names of ours, defaults."""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from dynamod.kvcache.tier_settings import TierSettings
from dynamod.message.errors import UserError

from ..adapter.arguments import Names, show
from ..adapter.tiers import split

NAMES = Names(
    engine="sglang",
    product="SGLang",
    help="sglang serve --help",
    model="model_path",
    flags={
        "context_length": ("context_length", "--context-length"),
        "page_size": ("kv_cache_block_size", "--kv-cache-block-size"),
        "tp_size": ("tensor_parallel_size", "--tensor-parallel-size"),
        "base_gpu_id": ("base_gpu_id", "--base-gpu-id"),
        "nnodes": ("num_nodes", "--num-nodes"),
        "node_rank": ("node_rank", "--node-rank"),
        "dist_init_addr": ("leader_addr", "--leader-addr"),
    },
    sizes=("tp_size", "pp_size", "dp_size"),
)

PAGE_SIZE = 64
"""Tokens of a block by default: SGLang's own default is one, and each block would be an event and a hash."""
CPU_TOKENS = 32768
"""KV cells on a CPU, at most, and at most four contexts: SGLang would take nearly all free memory."""


def defaults(values: Mapping[str, Any], *, sockets: str, context: int = 0, cpu: bool = False) -> dict[str, Any]:
    """`values` with what is better here than SGLang's own defaults, where nothing is given.

    Tokens go in and out, so it needs no tokenizer except for forms (`scheduler.py`). `sockets`: beginning of the paths
    of those for KV events. `cpu`: with kernels that need nothing compiled; `context`: tokens that the model can take.
    Raises UserError.
    """
    if cpu and values.get("enable_forward_pass_metrics"):
        raise UserError("SGLang measures its steps on GPUs only", "leave out enable_forward_pass_metrics")
    events = {
        "publisher": "zmq",
        # A rank adds its number to what follows the colon, if "tcp" is in the address: so each has its own.
        "endpoint": f"ipc://{sockets}-tcp-events:1",
        "replay_endpoint": f"ipc://{sockets}-tcp-replay:1",
        "topic": "kv",
    }
    own: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "skip_server_warmup": True,
        "incremental_streaming_output": True,
        "page_size": PAGE_SIZE,
        "kv_events_config": None if values.get("disable_radix_cache") else json.dumps(events),
    }
    if values.get("enable_forward_pass_metrics"):
        own["forward_pass_metrics_ipc_name"] = f"ipc://{sockets}-steps"
    if cpu:
        own |= {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
        own |= {"disable_overlap_schedule": True, "disable_cuda_graph": True}
        own["max_total_tokens"] = min(CPU_TOKENS, 4 * context or CPU_TOKENS)
    return {**own, **values}


def check(given: Mapping[str, Any], _block_size: int | None = None) -> TierSettings:
    """The tiers. Raises UserError for tiers that cannot be, independent of other arguments."""
    return split(NAMES, given)[0]


def flags(add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for each of SGLang's own flags: to show them."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    show(parser, add)
