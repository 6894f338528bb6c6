"""The description of a model in whichever form: one `Source` from a Hugging Face folder or a GGUF file.

`card`, `tokenizer` and `template` read only from here. To add a form (another file format), add a module that builds
a `Source` and name it in `open_source`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError

from .infill import Markers


@dataclass(frozen=True, slots=True)
class Source:
    """One model's description.

    `context_length`: tokens, 0 when unknown. `templates`: by name, "default" and perhaps "tool_use" and others.
    `tokens`: special tokens by role ("bos_token" ...), as text, for templates. `build`: makes the tokenizer.
    `tokenizer_file`: tokenizer.json, when there is one. `content`: what decides how text becomes tokens, as bytes.
    `infill`: ids of its infill markers, where its files name them.
    """

    path: Path
    context_length: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    build: Callable[[], Any]
    content: Callable[[], list[bytes]]
    tokenizer_file: Path | None = None
    templates: dict[str, str] = field(default_factory=dict[str, str])
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    sampling: dict[str, float] = field(default_factory=dict[str, float])
    infill: Markers | None = None


def open_card(card: ModelCard) -> Source:
    """Read what describes the card's model: its `config_path`, else its `path`. Raises UserError."""
    path = card.config_path or card.path
    if not path:
        raise UserError(f"model {card.name!r} has no files, so requests for it cannot be tokenised here")
    return open_source(Path(path))


def is_compiled(path: Path) -> bool:
    """Whether a folder holds an engine that TensorRT-LLM has compiled (`rank0.engine`), and not a model's own files."""
    return path.is_dir() and any(path.glob("*.engine")) and not (path / "tokenizer.json").is_file()


def open_source(path: Path) -> Source:
    """Read a model folder or GGUF file. Raises UserError when something needed is missing or unreadable."""
    from .folder_source import folder_source
    from .gguf_file import is_gguf
    from .gguf_source import gguf_source

    try:
        if is_compiled(path):
            problem = f"model {path} is an engine that TensorRT-LLM has compiled: it has no tokenizer"
            raise UserError(problem, "give the folder of the original model with --model-config")
        if path.is_dir():
            return folder_source(path)
        if is_gguf(path):
            return gguf_source(path)
        if not path.exists():
            raise UserError(f"model {path} does not exist")
    except OSError as error:  # most often files of another user
        raise UserError(f"{error.filename or path}: {error.strerror}", "the model's files must be readable") from None
    raise UserError(f"model {path} is neither a folder nor a GGUF file")
