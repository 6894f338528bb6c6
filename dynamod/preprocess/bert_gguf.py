"""A BERT encoder with WordPiece, from a folder of Hugging Face to a GGUF file as llama.cpp reads it."""

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError

log = logging.getLogger("dynamod.models")

FORMAT = 1
"""Part of the name of what is kept. Raise it whenever `convert` writes something else."""
_CONTROL, _NORMAL = 3, 1  # tokenizer.ggml.token_type
_DTYPES = {"F32": "<f4", "F16": "<f2"}
_PREFIX = "##"
_SPACE = "▁"
_POOLING = {"mean_tokens": "MEAN", "cls_token": "CLS", "lasttoken": "LAST"}
_LEFT_OUT = ("embeddings.position_ids", "pooler.", "cls.")
"""Tensors that vectors do not need: a table of numbers in order, and the heads of the training."""
_WHOLE = ("position_embd.", "token_types.")
"""Tables that llama.cpp reads in 32 bits."""


def convert(folder: Path, target: Path) -> None:
    """Write the model in `folder` to `target`, at once or not at all: matrices in 16 bits, the rest in 32.

    Raises UserError for a model that is no BERT with WordPiece, and OSError where `target` cannot be written.
    """
    import gguf

    began = time.monotonic()
    config, tokenizer = (_read(folder / name) for name in ("config.json", "tokenizer.json"))
    if config.get("model_type") != "bert" or tokenizer["model"].get("type") != "WordPiece":
        raise UserError(f"model {folder} is no BERT with WordPiece", "give a GGUF file of the model")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".part-", suffix=".gguf", dir=target.parent)
    os.close(handle)
    part = Path(name)
    try:
        writer = gguf.GGUFWriter(part, "bert")
        try:
            _describe(writer, gguf, config, folder)
            _vocabulary(writer, tokenizer)
            names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
            for tensor, values in read_tensors(folder / "model.safetensors"):
                stem, _, kind = tensor.rpartition(".")
                ours = f"{names.get_name(stem)}.{kind}"
                small = values.ndim == 1 or ours.startswith(_WHOLE)
                writer.add_tensor(ours, values.astype("float32" if small else "float16"))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    log.info("converted %s to %s in %.1f s", folder, target, time.monotonic() - began)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}", "install the package of the model again") from None
    return found


def _describe(writer: Any, gguf: Any, config: dict[str, Any], folder: Path) -> None:
    writer.add_name(str(config.get("_name_or_path") or folder.name))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    pooling = _read(folder / "1_Pooling/config.json")
    modes = [mode for key, mode in _POOLING.items() if pooling.get(f"pooling_mode_{key}")]
    if len(modes) != 1:
        raise UserError(f"model {folder} pools in a way that is not known", f"known: {', '.join(_POOLING)}")
    writer.add_pooling_type(gguf.PoolingType[modes[0]])
    writer.add_token_type_count(config.get("type_vocab_size", 1))


def _vocabulary(writer: Any, tokenizer: dict[str, Any]) -> None:
    """Tokens as llama.cpp spells them: the start of a word has `▁` before it, a continuation nothing."""
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    special = {added["content"]: added["id"] for added in tokenizer["added_tokens"] if added["special"]}
    tokens, types = [""] * len(vocabulary), [_NORMAL] * len(vocabulary)
    for token, index in vocabulary.items():
        tokens[index] = token[len(_PREFIX) :] if token.startswith(_PREFIX) else _SPACE + token
    for token, index in special.items():
        tokens[index], types[index] = token, _CONTROL
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    roles = {"bos": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    for role, token in roles.items():
        if token in special:
            getattr(writer, f"add_{role}_token_id")(special[token])


def read_tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Names and values of a safetensors file, read as they are needed. Raises UserError."""
    import numpy

    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header: dict[str, Any] = json.loads(opened.read(length))
    data = numpy.memmap(file, numpy.uint8, "r", offset=8 + length)
    for name, tensor in header.items():
        if name == "__metadata__" or name.startswith(_LEFT_OUT):
            continue
        if tensor["dtype"] not in _DTYPES:
            raise UserError(f"{file}: {name} has the type {tensor['dtype']}", f"known: {', '.join(_DTYPES)}")
        begin, end = tensor["data_offsets"]
        yield name, data[begin:end].view(_DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
