"""A GGUF file as a `Source`: everything comes from its metadata."""

import json
from pathlib import Path

from .gguf_file import Metadata, read_metadata
from .gguf_tokenizer import build_tokenizer, check_kind, strips_right
from .infill import Markers
from .source import Source

_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
# A base model's EOS often stays in the file of its chat version, which ends its turns with one of these (llama.cpp's
# list). In some files they are not marked as control tokens; </s> counts only where it is, for others have it as text.
_ENDS = {
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>", "<|endoftext|>"),
    *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<eos>", "<turn|>", "<|tool_response>", "<end_of_utterance>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>", "</s>"),
}
_CONTROL = 3
_INFILL = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))  # the latter in older files


def gguf_source(path: Path) -> Source:
    """Read the file's metadata once. Raises UserError when it cannot be read, or has a tokenizer that is not known."""
    metadata = read_metadata(path)
    check_kind(metadata)
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    templates = {
        key.removeprefix("tokenizer.chat_template").lstrip(".") or "default": value
        for key, value in metadata.items()
        if key.startswith("tokenizer.chat_template") and isinstance(value, str)
    }
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in roles.items()}
    special = {role: tokens[index] for role, index in ids.items() if index is not None and index < len(tokens)}
    return Source(
        path=path,
        context_length=int(metadata.get(f"{metadata.get('general.architecture', '')}.context_length", 0)),
        eos_ids=_eos_ids(metadata, tokens),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        build=lambda: build_tokenizer(metadata),
        content=lambda: _content(metadata),
        templates=templates,
        tokens=special,
        sampling={name: float(metadata[key]) for name, key in _SAMPLING.items() if key in metadata},
        infill=_infill(metadata),
    )


def _infill(metadata: Metadata) -> Markers | None:
    for names in _INFILL:
        before, between, last = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
        if before is not None and between is not None and last is not None:
            return before, between, last
    return None


def _eos_ids(metadata: Metadata, tokens: list[str]) -> tuple[int, ...]:
    named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    types = metadata.get("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    known = {token: index for index, token in enumerate(tokens) if token in _ENDS}
    ends = {token: index for token, index in known.items() if token != "</s>" or types[index : index + 1] == [_CONTROL]}
    ids = dict.fromkeys(index for index in (*named, *ends.values()) if index is not None)
    calls = {"<|call|>", "<|calls|>"} & {*ends}
    if "<|end|>" in ends and calls and {"<|return|>", "<|flush|>"} & {*ends}:
        del ids[ends["<|end|>"]]  # gpt-oss, Solar: it ends a channel of the answer, another one follows
    return tuple(ids)


def _content(metadata: Metadata) -> list[bytes]:
    """Every tokenizer key but the templates, which the card adds for both forms."""
    keys = [key for key in sorted(metadata) if key.startswith("tokenizer.") and "chat_template" not in key]
    texts = [json.dumps([key, metadata[key]], ensure_ascii=False) for key in keys]
    texts += ["strips_right"] * strips_right(metadata)
    return [text.encode("utf-8", "surrogatepass") for text in texts]
