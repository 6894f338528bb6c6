"""Models of llama.cpp whose KV cells cannot be exported by positions. They say nonsense, but always the same."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter

from dynamod import sample

WINDOW = 32
"""Tokens that every second layer of the windowed model sees."""


def windowed(path: Path) -> Path:
    """The sample's weights under an architecture that has a sliding window."""
    reader = GGUFReader(sample.path("sample.gguf"))
    writer = _writer(path, "gemma2", reader)
    writer.add_sliding_window(WINDOW)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
        for norm, more in (("attn_norm", "post_attention_norm"), ("ffn_norm", "post_ffw_norm")):
            if tensor.name.endswith(f"{norm}.weight"):
                writer.add_tensor(tensor.name.replace(norm, more), 10 * tensor.data)
    return _written(writer, path)


def recurrent(path: Path, width: int = 64, layers: int = 2) -> Path:
    """A Mamba of drawn weights with the sample's tokens."""
    inner, state, rank, kernel = 2 * width, 16, 4, 4
    draw = np.random.default_rng(5)
    reader = GGUFReader(sample.path("sample.gguf"))
    writer = _writer(path, "mamba", reader, embedding_length=width, block_count=layers)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        writer.add_tensor(name, (scale * draw.standard_normal(shape)).astype(np.float32))

    def ones(name: str, length: int) -> None:
        writer.add_tensor(name, np.ones(length, np.float32))

    words = next(len(tensor.data) for tensor in reader.tensors if tensor.name == "token_embd.weight")
    add("token_embd.weight", words, width)
    add("output.weight", words, width, scale=width**-0.5)
    ones("output_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight", width)
        add(block + "ssm_in.weight", 2 * inner, width, scale=width**-0.5)
        add(block + "ssm_conv1d.weight", inner, kernel, scale=0.5)
        add(block + "ssm_conv1d.bias", inner, scale=0.1)
        add(block + "ssm_x.weight", rank + 2 * state, inner, scale=inner**-0.5)
        add(block + "ssm_dt.weight", inner, rank, scale=0.5)
        add(block + "ssm_dt.bias", inner, scale=0.5)
        times = np.tile(-np.arange(1, state + 1, dtype=np.float32) / 40, (inner, 1))
        writer.add_tensor(block + "ssm_a", times)
        ones(block + "ssm_d", inner)
        add(block + "ssm_out.weight", width, inner, scale=inner**-0.5)
    return _written(writer, path)


def _writer(path: Path, architecture: str, reader: Any, **changed: int) -> Any:
    """A writer that has the sample's metadata, tokens and all. `changed`: numbers of the architecture."""
    writer = GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("llama."):
            name = f"{architecture}.{name.removeprefix('llama.')}"
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, value = field.types[0], changed.get(name.partition(".")[2], field.contents())
        writer.add_key_value(name, value, kind, field.types[-1] if len(field.types) > 1 else None)
    return writer


def _written(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
