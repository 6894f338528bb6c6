"""In vLLM's own processes, on a CPU: answers of the model itself alongside those of adapters.

vLLM gives tokens without an adapter the index -1. Its operations in torch take that as the last adapter, so such tokens
get the last adapter's change whenever a batch has adapters at all (vllm-project/vllm#48421). Its GPU kernels skip them.
"""

from collections.abc import Callable
from typing import Any

from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu


class Adapters:
    """Nothing: vLLM imports this module for it (`worker_extension_cls`)."""


def _skips(operation: Callable[..., None]) -> Callable[..., None]:
    """Rows without an adapter are zeros, of which an adapter makes zeros."""

    def skipping(inputs: Any, weights: Any, output: Any, indices: Any, *rest: Any, **named: Any) -> None:
        return operation(inputs.masked_fill((indices < 0).unsqueeze(1), 0), weights, output, indices, *rest, **named)

    return skipping


for _name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
    _changed = _skips(getattr(lora_ops, _name))
    for _module in (lora_ops, torch_ops, punica_cpu):
        setattr(_module, _name, _changed)
