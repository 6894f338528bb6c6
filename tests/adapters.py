"""LoRA adapters for the sample model, made of seeded noise: GGUF files as llama.cpp's converter writes them."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

RANK, LAYERS = 4, 4
SHAPES = {"attn_q": (192, 192), "attn_output": (192, 192), "ffn_up": (192, 512)}
"""Tensors of a layer that get an adapter: numbers that go in, and that come out."""


def write_adapter(
    path: Path, seed: int, *, strength: float = 0.15, architecture: str = "llama", width: int = 0
) -> Path:
    """Write an adapter of rank 4. `strength`: standard deviation of its factors; `width`: that of another model."""
    noise = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for layer in range(LAYERS):
        for name, (inner, outer) in SHAPES.items():
            for part, shape in (("lora_a", (RANK, width or inner)), ("lora_b", (outer, RANK))):
                values = (noise.standard_normal(shape) * strength).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.{name}.weight.{part}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
