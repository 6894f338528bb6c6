"""Write the sample model as a Hugging Face folder and as a GGUF file, and read the folder back."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from .data import CHAT_TEMPLATE, END, END_TEXT, SPECIALS
from .model import Llama, Shape

# Our name of a layer's weight -> (Hugging Face, GGUF).
LAYER_NAMES = {
    "norm1": ("input_layernorm", "attn_norm"),
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "o": ("self_attn.o_proj", "attn_output"),
    "norm2": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}


def names(shape: Shape) -> dict[str, tuple[str, str]]:
    """Every weight's name here, in safetensors and in GGUF."""
    found = {
        "embed.weight": ("model.embed_tokens.weight", "token_embd.weight"),
        "norm.weight": ("model.norm.weight", "output_norm.weight"),
    }
    for number in range(shape.layers):
        for ours, (hf, gg) in LAYER_NAMES.items():
            name = f"layers.{number}.{ours}.weight"
            found[name] = (f"model.layers.{number}.{hf}.weight", f"blk.{number}.{gg}.weight")
    return found


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_hf(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """The folder that loaders of Hugging Face models expect; weights in 16-bit floats."""
    shape = model.shape
    folder.mkdir(parents=True, exist_ok=True)
    end_text, end = tokenizer.token_to_id(END_TEXT), tokenizer.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": end_text,
        "eos_token_id": end,
        "pad_token_id": end_text,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.theta,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }
    _write(folder / "config.json", config)
    _write(
        folder / "generation_config.json",
        {
            "bos_token_id": end_text,
            "do_sample": False,
            "eos_token_id": [end, end_text],
            "pad_token_id": end_text,
            "temperature": 0.0,
        },
    )
    special = {"bos_token": END_TEXT, "eos_token": END, "pad_token": END_TEXT}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    _write(folder / "special_tokens_map.json", special)
    _write(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_eos_token": False,
            "added_tokens_decoder": {str(tokenizer.token_to_id(t)): {"content": t, **flags} for t in SPECIALS},
            **special,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": shape.context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    state = model.state_dict()
    weights = {hf: state[ours].to(torch.float16).contiguous() for ours, (hf, _) in names(shape).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner only otherwise


def load_hf(folder: Path, shape: Shape) -> tuple[Llama, Tokenizer]:
    """The model as it was written, so with the rounding of 16 bits."""
    weights = load_file(folder / "model.safetensors")
    model = Llama(shape)
    model.load_state_dict({ours: weights[hf].float() for ours, (hf, _) in names(shape).items()})
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def permute(weight: Tensor, heads: int) -> Tensor:
    """Rows of q and k in the order of GGUF's llama, where rotary pairs are neighbours and not halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def save_gguf(model: Llama, tokenizer: Tokenizer, path: Path) -> None:
    """One file with everything in it: weights, tokenizer and chat template."""
    shape = model.shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("model")
    writer.add_name("sample")
    writer.add_license("apache-2.0")
    writer.add_sampling_temp(0.0)  # greedy, as generation_config.json says
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    stored = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(number) for number in range(shape.vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in stored["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id(END_TEXT))
    writer.add_eos_token_id(tokenizer.token_to_id(END))
    writer.add_pad_token_id(tokenizer.token_to_id(END_TEXT))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    state = model.state_dict()
    for ours, (_, name) in names(shape).items():
        weight = state[ours].float()
        if ours.endswith(".q.weight"):
            weight = permute(weight, shape.heads)
        elif ours.endswith(".k.weight"):
            weight = permute(weight, shape.kv_heads)
        # Vectors stay in 32 bits: that is what the usual converter does and some loaders insist on.
        writer.add_tensor(name, weight.numpy().astype(np.float16 if weight.dim() == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
