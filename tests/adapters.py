"""LoRA adapters for the sample model, made of seeded noise: as PEFT writes them, as llama.cpp's converter does."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

RANK, LAYERS, HEADS = 4, 4, 3
Values = npt.NDArray[np.float32]
SHAPES = {"attn_q": (192, 192), "attn_output": (192, 192), "ffn_up": (192, 512)}
"""Tensors of a layer that get an adapter: numbers that go in, and that come out."""


MODULES = {"attn_q": "self_attn.q_proj", "attn_output": "self_attn.o_proj", "ffn_up": "mlp.up_proj"}
"""What PEFT calls them."""


def factors(seed: int, strength: float, width: int = 0) -> Iterator[tuple[int, str, Values, Values]]:
    """Of each tensor its layer, its name and both factors. `width`: that of another model."""
    noise = np.random.default_rng(seed)
    for layer in range(LAYERS):
        for name, (inner, outer) in SHAPES.items():
            first, second = [
                (noise.standard_normal(shape) * strength).astype(np.float32)
                for shape in ((RANK, width or inner), (outer, RANK))
            ]
            yield layer, name, first, second


def write_adapter(
    path: Path, seed: int, *, strength: float = 0.15, architecture: str = "llama", width: int = 0
) -> Path:
    """Write an adapter of rank 4. `strength`: standard deviation of its factors; `width`: that of another model."""
    writer = GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for layer, name, first, second in factors(seed, strength, width):
        writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", first)
        writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", second)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_peft(folder: Path, seed: int, *, strength: float = 0.15) -> Path:
    """The same adapter in a folder. Rows of query heads have the order of transformers, not that of llama.cpp."""
    found: dict[str, Values] = {}
    for layer, name, first, second in factors(seed, strength):
        if name == "attn_q":
            rows = len(second) // HEADS // 2
            second = second.reshape(HEADS, rows, 2, RANK).swapaxes(1, 2).reshape(second.shape)
        module = f"base_model.model.model.layers.{layer}.{MODULES[name]}"
        found |= {f"{module}.lora_A.weight": first, f"{module}.lora_B.weight": second}
    folder.mkdir()
    targets = [module.rpartition(".")[2] for module in MODULES.values()]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(found))
    return folder


def safetensors(found: dict[str, Values]) -> bytes:
    """The format of these files: the length of the header, the header, values."""
    header, end = dict[str, dict[str, object]](), 0
    for name, values in found.items():
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(values.tobytes() for values in found.values())])
