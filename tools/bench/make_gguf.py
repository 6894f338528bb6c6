#!/usr/bin/env python3
"""A GGUF model of random weights, of a size that is worth measuring: Llama, 100 million parameters by default.

make_gguf.py FOLDER [--types F16 Q8_0] [--width 640] [--layers 13] [--vocabulary 32000]

Writes `bench-f16.gguf` and `bench-q8_0.gguf`. Its text is nonsense; it never ends an answer by itself. Needs the
package `gguf`, which the tests need too.
"""

import argparse
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

import gguf
import numpy as np
from numpy.typing import NDArray

HEAD = 64
"""Values of an attention head. Half as many heads have keys and values."""
CONTEXT = 4096
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def vocabulary(size: int) -> tuple[list[str], list[int], list[float]]:
    """Tokens, types and scores of a SentencePiece BPE: bytes, letters and what becomes of them."""
    words = ("".join(letters) for length in (1, 2, 3, 4) for letters in product("▁" + ascii_lowercase, repeat=length))
    begin = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*begin, *islice(words, size - len(begin))]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * (size - len(begin))]
    return tokens, types, [-float(index) for index in range(size)]


def shapes(width: int, layers: int, size: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors by name, output first."""
    inner, kept = (width * 11 // 4 + 31) // 32 * 32, width // HEAD // 2 * HEAD
    block = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (kept, width),
        "attn_v": (kept, width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    found = {"token_embd": (size, width), "output_norm": (width,), "output": (size, width)}
    return found | {f"blk.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}


def weights(name: str, shape: tuple[int, ...], draw: np.random.Generator) -> NDArray[np.float32]:
    """Random, so that layers neither vanish nor grow; the end of an answer is never the likeliest token."""
    if name.endswith("norm"):
        return np.ones(shape, np.float32)
    made = draw.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
    if name == "output":
        made[2] = 0
    return made


def write(path: Path, kind: str, width: int, layers: int, size: int) -> int:
    """Write a file; returns the number of its parameters."""
    writer = gguf.GGUFWriter(path, "llama")
    all_shapes, heads = shapes(width, layers, size), width // HEAD
    writer.add_name("bench")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(all_shapes["blk.0.ffn_up"][0])
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(size)
    tokens, types, scores = vocabulary(size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    quantization = gguf.GGMLQuantizationType[kind]
    draw = np.random.default_rng(1)
    for name, shape in all_shapes.items():
        values = weights(name, shape, draw)
        if values.ndim == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sum(int(np.prod(shape)) for shape in all_shapes.values())


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", nargs="+", default=["F16", "Q8_0"], choices=["F32", "F16", "Q8_0", "Q4_0"])
    parser.add_argument("--width", type=int, default=640, help=f"a multiple of {2 * HEAD}")
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    a = parser.parse_args()
    if a.width < 2 * HEAD or a.width % (2 * HEAD):
        parser.error(f"--width {a.width} is no multiple of {2 * HEAD}")
    if not 1_000 <= a.vocabulary <= 500_000:
        parser.error(f"--vocabulary {a.vocabulary} is not between 1,000 and 500,000")
    a.folder.mkdir(parents=True, exist_ok=True)
    for kind in a.types:
        path = a.folder / f"bench-{kind.lower()}.gguf"
        count = write(path, kind, a.width, a.layers, a.vocabulary)
        print(f"{path}: {count / 1e6:.1f} million parameters, {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
