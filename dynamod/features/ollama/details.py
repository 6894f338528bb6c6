"""What a model's files say of it, in Ollama's words, as far as the files are on this machine."""

import json
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import DynamodError

KEPT = 64
"""Models whose descriptions are kept."""


class OllamaDetails(msgspec.Struct):
    """The kind of a model. Texts are empty where the files are on another machine."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class Description(msgspec.Struct):
    """A model's details, `size` of its files in bytes, and metadata as /api/show has it."""

    details: OllamaDetails
    size: int = 0
    info: dict[str, Any] = {}


def described(card: ModelCard) -> Description:
    """The description of a card's model; blocks while it is read for the first time."""
    found = _read(card.path) if card.path else Description(OllamaDetails())
    found = msgspec.structs.replace(found, details=msgspec.structs.replace(found.details, parent_model=card.parent))
    if card.context_length:
        family = found.details.family or "general"
        found.info = {"general.architecture": family, f"{family}.context_length": card.context_length} | found.info
    return found


def digest_of(card: ModelCard) -> str:
    """64 hexadecimal digits: Ollama's clients show the first ones."""
    return sha256(f"{card.name} {card.mdc_sum}".encode()).hexdigest()


@lru_cache(maxsize=KEPT)
def _read(path: str) -> Description:
    place = Path(path)
    try:
        if place.is_file():
            return _of_gguf(place)
        if (config := place / "config.json").is_file():
            return _of_folder(place, json.loads(config.read_bytes()))
    except (OSError, ValueError, DynamodError):
        pass  # a model is served, whatever its files say
    return Description(OllamaDetails())


def _of_gguf(path: Path) -> Description:
    from dynamod.preprocess.gguf_file import read_metadata, shards
    from dynamod.preprocess.selection import quantizations

    metadata = read_metadata(path)
    kept = {name: value for name, value in metadata.items() if isinstance(value, str | int | float)}
    info = {name: value for name, value in kept.items() if "chat_template" not in name}
    family = str(metadata.get("general.architecture", ""))
    label = next(iter(quantizations({path.name: 0})), "")
    size_label = str(metadata.get("general.size_label", ""))
    known = label if label != path.stem else ""
    details = OllamaDetails(
        "", "gguf", family, [family] if family else [], size_label, known or _file_type(kept.get("general.file_type"))
    )
    return Description(details, sum(one.stat().st_size for one in shards(path)), info)


def _file_type(number: Any) -> str:
    from gguf import LlamaFileType

    try:
        return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return ""


def _of_folder(folder: Path, config: dict[str, Any]) -> Description:
    family = str(config.get("model_type", ""))
    weights = [*folder.glob("*.safetensors")]
    kind = str(config.get("torch_dtype") or config.get("dtype") or "")
    short = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}.get(kind, kind)
    quantized = config.get("quantization_config")
    level = str(quantized.get("quant_method", "")) if isinstance(quantized, dict) else short
    details = OllamaDetails("", "safetensors" if weights else "", family, [family] if family else [], "", level)
    names = {f"{family}.{name}": value for name, value in config.items() if isinstance(value, int | float)}
    return Description(details, sum(one.stat().st_size for one in weights), names if family else {})
