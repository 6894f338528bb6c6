"""A model folder or GGUF file as the `ModelCard` that a worker publishes."""

import hashlib
import time
from pathlib import Path
from typing import Any

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError

from .source import Source, open_source
from .template import ChatTemplate


def read_card(
    path: Path,
    *,
    name: str,
    config: Path | None = None,
    context_length: int | None = None,
    kv_cache_block_size: int = 16,
    **overrides: Any,
) -> ModelCard:
    """Read the card of the model at `path`; further keywords set fields of the card.

    `config`: folder (or a file in it, or a GGUF file) that describes the model when `path` only has the weights.
    `context_length`: tokens, at most the model's own. Raises UserError when a file is missing or unreadable, or the
    context length is larger than the model's.
    """
    config = _described_in(config)
    source = open_source(config or path)
    fields: dict[str, Any] = {
        "name": name,
        "path": str(path),
        "config_path": str(config) if config else "",
        "context_length": _context(source, context_length),
        "kv_cache_block_size": kv_cache_block_size,
        "eos_token_ids": source.eos_ids,
        "bos_token_id": source.bos_id,
        "sampling_defaults": source.sampling,
        "created": int(time.time()),
        **overrides,
    }
    fields.setdefault("mdc_sum", checksum(source, fields["eos_token_ids"], fields["context_length"]))
    return ModelCard(**fields)


def check_files(path: Path, config: Path | None = None, context_length: int | None = None) -> None:
    """Look at the files of a model before anything starts.

    Raises UserError as `read_card` does, and for a chat template that is not valid.
    """
    source = open_source(_described_in(config) or path)
    _context(source, context_length)
    for text in source.templates.values():
        ChatTemplate(text)


def has_chat_template(path: Path, config: Path | None = None) -> bool:
    """Whether chats can be made into prompts for a model of this machine. Raises UserError as `read_card` does."""
    templates = open_source(_described_in(config) or path).templates
    return bool(templates.get("default") or templates.get("tool_use"))


def _described_in(config: Path | None) -> Path | None:
    """The folder of a file that was named instead of its folder."""
    return config.parent if config is not None and config.is_file() and config.suffix.lower() != ".gguf" else config


def _context(source: Source, wanted: int | None) -> int:
    if wanted is None:
        return source.context_length
    if wanted < 1:
        raise UserError(f"context length {wanted} is too small", "give at least 1 token")
    if source.context_length and wanted > source.context_length:
        problem = f"context length {wanted} is larger than the model's {source.context_length}"
        raise UserError(problem, "give a smaller one")
    return wanted


def checksum(source: Source, eos_ids: tuple[int, ...], context_length: int) -> str:
    """BLAKE2b-256 in hex over what decides how text becomes tokens: equal wherever the files lie."""
    digest = hashlib.blake2b(digest_size=32)
    templates = [text.encode("utf-8") for item in sorted(source.templates.items()) for text in item]
    numbers = [str(eos_ids).encode(), str(source.bos_id).encode(), str(context_length).encode()]
    for part in (*source.content(), *templates, *numbers):
        digest.update(len(part).to_bytes(8, "little"))  # so that parts cannot flow into each other
        digest.update(part)
    return digest.hexdigest()
