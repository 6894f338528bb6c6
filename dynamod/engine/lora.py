"""LoRA adapters of a worker: how users write them, and what is known of their files before anything starts."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dynamod.message.discovery import Adapter
from dynamod.message.errors import UserError

FORM = "write NAME=PATH, or an object with name, path and scale"
CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
"""Files of an adapter in a folder, as PEFT writes it."""


LATE = 5.0
"""Seconds that an adapter stays loaded after its unloading, for requests on their way."""


class AdapterSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter. `path`: file or folder; `scale`: factor of its change, 1.0 as it was trained."""

    name: str
    path: str
    scale: float = 1.0


def adapters_of(given: str | Sequence[str | AdapterSetting], taken: str = "") -> tuple[Adapter, ...]:
    """The adapters as they are written: NAME=PATH, or as an object, which may be JSON in a text.

    `taken`: the name of the model below them. Raises UserError, also for names that are used twice.
    """
    found = [_adapter(one) for one in ([given] if isinstance(given, str) else given)]
    for place, one in enumerate(found):
        if one.name == taken:
            raise UserError(f"lora: {one.name!r} is the name of the model", "give the adapter another name")
        if one.name in [other.name for other in found[:place]]:
            raise UserError(f"lora: the name {one.name!r} is given twice", "each adapter has a name of its own")
    return tuple(found)


def _adapter(given: str | AdapterSetting) -> Adapter:
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given, type=AdapterSetting) if given.startswith("{") else _plain(given)
        except msgspec.MsgspecError as error:
            raise UserError(f"lora: {given!r}: {error}", FORM) from None
    made = {"name": given.name, "path": str(Path(given.path).expanduser()), "scale": given.scale}
    try:
        return msgspec.convert(made, Adapter)
    except msgspec.ValidationError:
        raise UserError(f"lora: {given.name!r} at {given.path!r} is no adapter's name and path", FORM) from None


def _plain(text: str) -> AdapterSetting:
    name, _, path = text.partition("=")
    if not name or not path:
        raise UserError(f"lora: {text!r} names no adapter and its path", FORM)
    return AdapterSetting(name, path)


def digested(adapter: Adapter) -> Adapter:
    """The adapter with its digest. Reads all of its files. Raises UserError."""
    path, sum_ = Path(adapter.path), hashlib.blake2b(f"{adapter.scale!r}".encode(), digest_size=16)
    try:
        for file in [path] if path.is_file() else folder_files(path):
            with file.open("rb") as stream:
                sum_.update(hashlib.file_digest(stream, "blake2b").digest())
    except OSError as error:
        raise UserError(f"lora {adapter.name}: {error.filename}: {error.strerror}") from None
    return msgspec.structs.replace(adapter, digest=sum_.hexdigest())


def folder_files(path: Path) -> list[Path]:
    """The files of an adapter in a folder. Raises UserError for another folder, and where there is nothing."""
    if not path.exists():
        raise UserError(f"lora: {path} does not exist", "give the path of the adapter")
    weights = [path / name for name in WEIGHTS if (path / name).is_file()]
    if not (path / CONFIG).is_file() or not weights:
        raise UserError(f"lora: {path} is no adapter: it needs {CONFIG} and {' or '.join(WEIGHTS)}")
    return [path / CONFIG, weights[0]]


def check_folder(adapters: Iterable[Adapter], _model: Path | None) -> None:
    """Adapters for vLLM: folders of PEFT, at their own scale. Raises UserError. `_model`: says nothing about them."""
    for one in adapters:
        if one.scale != 1.0:
            raise UserError(f"lora {one.name}: vllm knows no scale, and {one.scale:g} is given", "leave it out")
        config = folder_files(Path(one.path))[0]
        try:
            kind = json.loads(config.read_text(encoding="utf-8")).get("peft_type")
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"lora: {config} cannot be read: {error}") from None
        if kind not in ("LORA", None):
            raise UserError(f"lora: {one.path} is an adapter of kind {kind}, not LORA")
