"""From the name a user types to a path on this machine. Nothing is downloaded here (`fetch` does it)."""

import importlib
from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.message.hints import closest

from .packaged import PACKAGED, packaged
from .reference import SHIPPED, is_local, reference


def locate(name: str, *, weights: bool = True) -> Path:
    """Return the folder or GGUF file that `name` means.

    In order: `sample` and `sample.gguf` (shipped with dynamod), a path on this machine, `smollm2` and `minilm` (of the
    extra `demo`), and in the local cache a model
    of Hugging Face: `org/name`, `org/name:Q4_K_M` for one quantization of GGUF files, `org/name/file.gguf`, each with
    or without `hf://`. `weights` false: tokenizer and template are enough. Raises UserError with one line that says
    what to do.
    """
    if (path := local(name)) is not None:
        return path
    from .cache import cached

    wanted = reference(name)
    assert wanted is not None
    if (path := cached(wanted, weights=weights)) is None:
        raise UserError(f"model '{wanted}' is not in the local cache", f"dynamo pull {wanted}, or give a local path")
    return path


def local(name: str) -> Path | None:
    """The path of a shipped model or of one that lies here; None for a model of Hugging Face. Raises UserError.

    A packaged model that needs another form is converted on first use, which blocks for about a second.
    """
    if name in SHIPPED:
        shipped: Path = importlib.import_module("dynamod.sample").path(name)
        return shipped
    if is_local(name):
        return Path(name).expanduser()
    if name in PACKAGED:
        return packaged(name)
    if reference(name) is None:
        raise UserError(f"model {name!r} is neither a path on this machine nor org/name on Hugging Face", near(name))
    return None


def typed(path: Path) -> str:
    """What a user types for a path: the name of a shipped model, else the path."""
    return next((name for name in SHIPPED if local(name) == path), str(path))


def near(name: str) -> str:
    """What the user may have meant: a shipped or packaged model or a neighbour of the path."""
    path = Path(name).expanduser()
    if shipped := closest(name, (*SHIPPED, *PACKAGED)):
        return f"did you mean '{shipped}'?"
    neighbours = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    if found := closest(path.name, neighbours):
        return f"did you mean '{path.parent / found}'?"
    return "give a folder, a .gguf file, org/name, or `sample`"
