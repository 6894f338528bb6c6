"""Models of llama.cpp whose KV cells cannot be exported by positions. They say nonsense, but always the same."""

from collections.abc import Sequence
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
    writer = writer_like(path, "gemma2", reader)
    writer.add_sliding_window(WINDOW)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
        for norm, more in (("attn_norm", "post_attention_norm"), ("ffn_norm", "post_ffw_norm")):
            if tensor.name.endswith(f"{norm}.weight"):
                writer.add_tensor(tensor.name.replace(norm, more), 10 * tensor.data)
    return write(writer, path)


def recurrent(path: Path, width: int = 64, layers: int = 2) -> Path:
    """A Mamba of drawn weights with the sample's tokens."""
    inner, state, rank, kernel = 2 * width, 16, 4, 4
    draw = np.random.default_rng(5)
    reader = GGUFReader(sample.path("sample.gguf"))
    writer = writer_like(path, "mamba", reader, embedding_length=width, block_count=layers)
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
    return write(writer, path)


def hybrid(path: Path) -> Path:
    """The sample's weights under an architecture in which every second layer has a short convolution for attention."""
    kernel = 3
    draw = np.random.default_rng(6)
    reader = GGUFReader(sample.path("sample.gguf"))
    kept = [layer % 2 for layer in range(4)]
    writer = writer_like(path, "lfm2", reader, ("attention.head_count_kv",))
    writer.add_head_count_kv(kept)
    writer.add_shortconv_l_cache(kernel)
    for tensor in reader.tensors:
        block, layer, name = _parts(tensor.name)
        if block and not kept[layer] and name.startswith("attn_") and name != "attn_norm.weight":
            continue
        writer.add_tensor("token_embd_norm.weight" if tensor.name == "output_norm.weight" else tensor.name, tensor.data)
    width = 192
    for layer, attends in enumerate(kept):
        block = f"blk.{layer}."
        if attends:
            for name in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"{block}{name}.weight", np.ones(64, np.float32))
            continue
        for name, shape in (("conv", (width, kernel)), ("in_proj", (3 * width, width)), ("out_proj", (width, width))):
            drawn = draw.standard_normal(shape).astype(np.float32) * np.float32(shape[-1] ** -0.5)
            writer.add_tensor(f"{block}shortconv.{name}.weight", drawn)
    return write(writer, path)


def _parts(name: str) -> tuple[str, int, str]:
    """Of a tensor's name in a layer: `blk`, the layer, the rest."""
    if not name.startswith("blk."):
        return "", 0, name
    block, layer, rest = name.split(".", 2)
    return block, int(layer), rest


def writer_like(path: Path, architecture: str, reader: Any, without: Sequence[str] = (), **changed: Any) -> Any:
    """A writer that has the sample's metadata, tokens and all. `changed`: values by names without the first part."""
    writer = GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("llama."):
            name = f"{architecture}.{name.removeprefix('llama.')}"
        if name.startswith("GGUF.") or name == "general.architecture" or name.partition(".")[2] in without:
            continue
        kind, value = field.types[0], changed.get(name.partition(".")[2], field.contents())
        writer.add_key_value(name, value, kind, field.types[-1] if len(field.types) > 1 else None)
    return writer


def write(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
