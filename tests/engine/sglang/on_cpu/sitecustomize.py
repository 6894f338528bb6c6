"""SGLang's deterministic inference on a CPU: its own sampler, with the hash that it has kernels of for GPUs alone.

To be put on the path of a worker, in which Python imports it by itself. Not a test.
"""

import importlib.util
import sys
from typing import Any

LOW = 0xFFFFFFFF


def choices(module: Any) -> None:
    module.DETERMINISTIC_ATTENTION_BACKEND_CHOICES.append("torch_native")


def operations(module: Any) -> None:
    module.enable_batch_invariant_mode = lambda: None  # kernels for GPUs; one core computes a row always alike


def sampler(module: Any) -> None:
    module.murmur_hash32 = murmur_hash32


def _mixed(hashed: Any, block: Any) -> Any:
    block = (block * 0xCC9E2D51) & LOW
    block = ((block << 15) | (block >> 17)) & LOW
    hashed = hashed ^ ((block * 0x1B873593) & LOW)
    hashed = ((hashed << 13) | (hashed >> 19)) & LOW
    return (hashed * 5 + 0xE6546B64) & LOW


def murmur_hash32(seed: Any, positions: Any, columns: Any) -> Any:
    """MurmurHash3 of 16 bytes: the seed's two halves, the position, the token id."""
    import torch

    seed = seed.to(torch.int64)
    hashed = torch.zeros((len(seed), 1), dtype=torch.int64)
    for block in (seed & LOW, (seed >> 32) & LOW, positions.to(torch.int64)):
        hashed = _mixed(hashed, block[:, None])
    hashed = _mixed(hashed, columns.to(torch.int64)[None, :]) ^ 16
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & LOW
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & LOW
    return (hashed ^ (hashed >> 16)).to(torch.uint32)


class Patching:
    """Changes modules when they have been imported."""

    def __init__(self) -> None:
        self._patches = {
            "sglang.srt.arg_groups.choices": choices,
            "sglang.srt.batch_invariant_ops": operations,
            "sglang.srt.layers.sampler": sampler,
        }

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def both(module: Any) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = both
        return spec


sys.meta_path.insert(0, Patching())
