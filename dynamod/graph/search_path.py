"""Where graph and config files are looked for, and the errors that list what is there."""

from collections.abc import Iterable
from pathlib import Path

from dynamod.graph.importing import shipped_root
from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint, names, near


def split_target(target: str) -> tuple[str, str]:
    """`(module or file, class)` of `graphs.agg:Frontend` or `path/to/file.py:Frontend`."""
    name, _, qualname = target.rpartition(":")
    if not name or not qualname.replace(".", "").isidentifier():
        raise UserError(f"'{target}' does not name a service", "write module.path:Class or path/to/file.py:Class")
    return name, qualname


def module_file(name: str, folders: Iterable[Path]) -> Path | None:
    """The file meant by a target that is a path, None when it is a module name. Raises UserError when it is missing."""
    if not (name.endswith(".py") or "/" in name):
        return None
    path = Path(name).expanduser()
    candidates = [path] if path.is_absolute() else [folder / path for folder in folders]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    siblings = [str(path.with_name(file.name)) for file in sorted(candidates[0].parent.glob("*.py"))]
    raise UserError(f"no graph file {candidates[0]}", near(name, siblings).strip())


def find_config(name: str, folder: Path) -> Path:
    """A config file in the current folder or among those shipped. Raises UserError that lists both."""
    path = Path(name).expanduser()
    for candidate in (folder / path, shipped_root() / path):
        if candidate.is_file():
            return candidate.resolve()
    there = [f"configs/{file.name}" for file in _beside(folder, "configs/*.yaml")]
    raise UserError(f"no config file '{name}' in {folder} or among those shipped", known_hint(name, there, "available"))


def _beside(folder: Path, pattern: str) -> list[Path]:
    """Files in the current folder and among those shipped."""
    return [file for root in (folder, shipped_root()) for file in root.glob(pattern) if file.stem[0] != "_"]


def no_module(name: str, folder: Path) -> UserError:
    """The error of a target that is nowhere, or that was not given."""
    graphs = [f"graphs.{file.stem}" for file in _beside(folder, "graphs/*.py")]
    if not name:
        hint = f"name one like graphs.agg:Frontend, or write graph: in the config; available: {names(graphs)}"
        return UserError("no graph given", hint)
    local = [file.stem for file in folder.glob("*.py")]
    hint = f"{near(name, [*graphs, *local])}available: {names(graphs)}"
    return UserError(f"no module '{name}' in {folder}, among the shipped graphs or installed", hint)
