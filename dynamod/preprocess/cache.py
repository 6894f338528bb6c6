"""The local cache of Hugging Face: `models--org--name/snapshots/COMMIT/FILE`, links into `blobs`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynamod.message.errors import UserError

from .reference import Reference
from .selection import Selection, Sizes, has_weights, quantizations, select, size

TOKENIZER = "tokenizer"
"""The kind of a model without weights."""


class Model(NamedTuple):
    """A model in the cache, by the name it is asked for. `size` in bytes; `path`: what an engine is given."""

    name: str
    size: int
    kind: str
    path: str


def root() -> Path:
    """The folder of the cache, by HF_HUB_CACHE, HF_HOME and the rest."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def folder(repository: str) -> Path:
    """Where a repository's files are."""
    return root() / f"models--{repository.replace('/', '--')}"


def repositories() -> Iterator[str]:
    """Names of the repositories that are there, whole or in part."""
    for found in sorted(root().glob("models--*--*")):
        yield found.name.removeprefix("models--").replace("--", "/", 1)


def snapshot(repository: str) -> Path | None:
    """The folder of the commit that was looked at last."""
    place = folder(repository)
    try:
        found = place / "snapshots" / (place / "refs/main").read_text().strip()
    except OSError:
        return None
    return found if found.is_dir() else None


def files(place: Path) -> dict[str, int]:
    """The files of a snapshot with their bytes."""
    found = ((file.relative_to(place).as_posix(), file) for file in place.rglob("*"))
    return {name: file.stat().st_size for name, file in found if file.is_file()}


def cached(wanted: Reference, *, weights: bool = True) -> Path | None:
    """The folder or GGUF file of a model that is there with all its files; None when something is missing."""
    place = snapshot(wanted.repository)
    if place is None:
        return None
    there = files(place)
    try:
        selection = select(there, wanted, weights=weights)
    except UserError:
        return None
    if not selection.files or (weights and not selection.main and not _complete(place, selection)):
        return None
    return path_of(place, selection)


def remove(wanted: Reference) -> int:
    """Delete a model, or one quantization of its GGUF files; bytes that were deleted, 0 where it is not there.

    Blocks. Raises UserError for a quantization or file that the repository does not have here, and OSError.
    """
    place = snapshot(wanted.repository)
    if place is None:
        return 0
    there = files(place)
    named = select(there, wanted).files if wanted.file or wanted.quantization else tuple(there)
    if has_weights({name: there[name] for name in there.keys() - {*named}}):
        for name in named:
            link = place / name
            blob = link.resolve()
            link.unlink()
            blob.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder(wanted.repository))
    return sum(there[name] for name in named)


def models() -> Iterator[Model]:
    """What the cache holds: each quantization of GGUF files on its own, other models by their repository."""
    for repository in repositories():
        if (place := snapshot(repository)) is None:
            continue
        there = files(place)
        groups = quantizations(there)
        for label, parts in groups.items():
            path = cached(Reference(repository, quantization=label))
            kind = "GGUF" if path is not None else "GGUF, in part"
            yield Model(f"{repository}:{label}", size(there, parts), kind, str(path or place))
        others = [name for name in there if not name.lower().endswith(".gguf")]
        if others and (kind := _kind(dict.fromkeys(others), bool(groups))):
            if cached(Reference(repository), weights=kind != TOKENIZER) is None:
                kind += ", in part"
            yield Model(repository, size(there, others), kind, str(place))


def _parts(index: Path) -> set[str]:
    """The files that an index of weights names; none when it cannot be read, which the engine will say."""
    try:
        return {*json.loads(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return set()


def _kind(names: Sizes, gguf: bool) -> str:
    """The form of the weights; empty for what lies next to GGUF files."""
    if not has_weights(names):
        return "" if gguf else TOKENIZER
    return "safetensors" if any(name.endswith(".safetensors") for name in names) else "pickle"


def path_of(place: Path, selection: Selection) -> Path:
    """What an engine is given of a snapshot."""
    return place / selection.main if selection.main else place


def _complete(place: Path, selection: Selection) -> bool:
    """Whether weights are there, and all that an index names."""
    for name in selection.files:
        if name.endswith(".index.json") and not _parts(place / name) <= {*selection.files}:
            return False
    return has_weights(dict.fromkeys(selection.files))
