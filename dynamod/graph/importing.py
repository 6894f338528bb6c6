"""Finding graph and config files; importing them without a trace in this process, and services for good in a child.

A graph is looked for in the current folder, the config file's folder and the files shipped with dynamod. Two folders
may both have a package `graphs`, and a user edits files and reloads. So `Importer` removes what it finds loaded from
user files, imports it again, and on leaving puts `sys.modules` and `sys.path` back. Installed packages and dynamod
itself stay cached.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import ModuleType, TracebackType
from typing import Self

import dynamod
from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint, names, near

_STDLIB = os.path.dirname(os.__file__) + os.sep


def shipped_root() -> Path:
    """Folder with the `graphs/` and `configs/` that come with dynamod: in the wheel, or in the checkout."""
    ours = Path(dynamod.__path__[0]).resolve()
    wheel = ours / "shipped"
    return wheel if wheel.is_dir() else ours.parent


def lasting(file: str) -> str:
    """A file of ours where it was installed: a daemon runs from a snapshot, which goes with it."""
    first, *others = dynamod.__path__
    return file.replace(first, others[-1], 1) if others and file.startswith(first + os.sep) else file


def find_module(root: str | Path, name: str) -> Path | None:
    """Source file of module `name` below `root`."""
    base = Path(root, *name.split("."))
    return next((file for file in (base.with_name(base.name + ".py"), base / "__init__.py") if file.is_file()), None)


def module_of_file(file: Path) -> tuple[Path, str] | None:
    """`(root, dotted name)` of a file, honouring `__init__.py`; None when its name is no identifier."""
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return (folder, ".".join(parts)) if all(part.isidentifier() for part in parts) else None


def split_target(target: str) -> tuple[str, str]:
    """`(module or file, class)` of `graphs.agg:Frontend` or `path/to/file.py:Frontend`."""
    name, _, qualname = target.rpartition(":")
    if not name or not qualname.replace(".", "").isidentifier():
        hint = "write module.path:Class or path/to/file.py:Class"
        if target.endswith((".yaml", ".yml", ".json")):
            hint = f"a config file is given with -f: dynamo serve -f {target}"
        elif ":" not in target and all(part.isidentifier() for part in target.split(".")):
            hint = f"{hint}, for example {target}:Frontend"
        raise UserError(f"'{target}' does not name a service", hint)
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
        try:
            if candidate.is_file():
                return candidate.resolve()
        except OSError as error:
            raise UserError(f"{candidate}: {error.strerror}", "check its permissions") from None
    there = [f"configs/{file.name}" for file in _beside(folder, "configs/*.yaml")]
    raise UserError(f"no config file '{name}' in {folder} or among those shipped", known_hint(name, there, "available"))


def own_config(target: str, folder: Path) -> str | None:
    """The config of a graph `graphs.NAME:Class`, if there is one: `configs/NAME.yaml`, which names this graph."""
    package, _, name = target.partition(":")[0].rpartition(".")
    config = f"configs/{name}.yaml"
    if package != "graphs":
        return None
    file = next((file for root in (folder, shipped_root()) if (file := root / config).is_file()), None)
    line = re.compile(rf"^graph:\s*{re.escape(target)}\s*$", re.MULTILINE)
    return config if file is not None and line.search(file.read_text(encoding="utf-8", errors="replace")) else None


def _beside(folder: Path, pattern: str) -> list[Path]:
    """Files in the current folder and among those shipped."""
    return [file for root in (folder, shipped_root()) for file in root.glob(pattern) if file.stem[0] != "_"]


def _graphs(folder: Path) -> list[str]:
    return [f"graphs.{file.stem}" for file in _beside(folder, "graphs/*.py")]


def no_graph(folder: Path, file: str, keys: Iterable[str]) -> UserError:
    """The error where no target is given. `file`: the config, with its `keys`; empty: none was given."""
    has = ", ".join(f"`{key}`" for key in keys) or "no key"
    why = f"no graph given: {file} has no `graph`, only {has}" if file else "no graph given"
    hint = f"name one like graphs.agg:Frontend, or write graph: in the config; available: {names(_graphs(folder))}"
    return UserError(why, hint)


def no_module(name: str, folder: Path) -> UserError:
    """The error of a target that is nowhere."""
    graphs = _graphs(folder)
    local = [file.stem for file in folder.glob("*.py")]
    hint = f"{near(name, [*graphs, *local])}available: {names(graphs)}"
    return UserError(f"no module '{name}' in {folder}, among the shipped graphs or installed", hint)


def import_module(name: str, front: Sequence[str], file: str = "") -> ModuleType:
    """Import `name` from the first of `front` that has it, then from the shipped files, else as Python would.

    `file`: where to load it from when no folder has it by that name (`my-graph.py`). Raises whatever the module does.
    """
    roots = list(dict.fromkeys([*front, str(shipped_root())]))
    sys.path[:] = [*(entry for entry in front if entry not in sys.path), *sys.path]
    if roots[-1] not in sys.path:
        sys.path.append(roots[-1])
    found = next(((root, path) for root in roots if (path := find_module(root, name))), None)
    if found is None:
        if file and importlib.util.find_spec(name.partition(".")[0]) is None:
            return _run(importlib.util.spec_from_file_location(name, file))
        return importlib.import_module(name)
    root, path = found
    parts = name.split(".")
    for depth in range(1, len(parts)):
        _package(".".join(parts[:depth]), [root, *(other for other in roots if other != root)])
    module = importlib.import_module(name)
    if not module.__file__ or Path(module.__file__).resolve() != path.resolve():
        raise UserError(f"{path} cannot be imported: module '{name}' is already {module.__file__}", "rename the file")
    return module


def _package(name: str, roots: Sequence[str]) -> None:
    """Make the parent package of a module span all roots, nearest first: a user's `graphs` and the shipped are one."""
    folders = [folder for root in roots if os.path.isdir(folder := os.path.join(root, *name.split(".")))]
    if package := sys.modules.get(name):
        known = getattr(package, "__path__", None)
        if isinstance(known, list) and any(folder in folders for folder in known):
            known[:] = dict.fromkeys([*known, *folders])
        return
    init = os.path.join(folders[0], "__init__.py")
    if os.path.isfile(init):
        _run(importlib.util.spec_from_file_location(name, init, submodule_search_locations=folders))
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = folders
        sys.modules[name] = importlib.util.module_from_spec(spec)


def _run(spec: importlib.machinery.ModuleSpec | None) -> ModuleType:
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


class Importer:
    """Context manager: user modules imported inside live only inside.

    Not for two threads at once. `front` is what a child must put in front of `sys.path` to import the same.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self.front: list[str] = []

    def __enter__(self) -> Self:
        self._path, self._before = list(sys.path), dict(sys.modules)
        importlib.invalidate_caches()
        _forget(self._before)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        _forget({name: module for name, module in sys.modules.items() if self._before.get(name) is not module})
        sys.modules.update(self._before)
        sys.path[:] = self._path

    def module(self, name: str, *, afresh: bool) -> ModuleType | None:
        """A module of the folders, else one that Python itself finds, else None.

        `afresh`: run the code of an installed one again, because its links are wanted.
        """
        own = name.partition(".")[0] == "dynamod"  # also in a checkout: dynamod is never imported twice
        root = next((folder for folder in self.folders if find_module(folder, name)), None)
        if root is not None and not own:
            self._use(root)
        elif not _exists(name):
            return None
        elif afresh and not own:
            sys.modules.pop(name, None)
        with _blame(name):
            return import_module(name, self.front)

    def module_at(self, file: Path) -> ModuleType:
        """Import the file at a path: as part of its package if it is in one."""
        root, name = module_of_file(file) or (file.parent, re.sub(r"\W", "_", file.stem))
        for folder in (root, *self.folders):  # what it imports may be relative to the current folder
            self._use(folder)
        with _blame(name):
            return import_module(name, self.front, str(file))

    def sys_path(self) -> tuple[str, ...]:
        """Import folders of a child: the folders that were used, then the folders that a graph file added itself."""
        known = {*self._path, str(shipped_root())}
        added = [os.path.abspath(entry) for entry in sys.path if entry not in known]
        return tuple(dict.fromkeys([*self.front, *added]))

    def _use(self, root: Path) -> None:
        """Import from a folder before all others, except folders that are used already."""
        root = root.resolve()
        if root != shipped_root().resolve() and str(root) not in self.front:
            self.front.append(str(root))


@contextmanager
def _blame(name: str) -> Iterator[None]:
    """Errors of the user's file become one line with file and line."""
    try:
        yield
    except SyntaxError as error:
        raise UserError(f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frame = _user_frame(error.__traceback__)
        if isinstance(error, UserError):
            raise UserError(f"{frame}: {error}" if frame else str(error), error.hint) from error
        text = " ".join(str(error).split())
        raise UserError(f"{frame or name}: {type(error).__name__}: {text}") from error


def _exists(name: str) -> bool:
    """Whether Python itself finds a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _forget(modules: Mapping[str, ModuleType]) -> None:
    """Remove those of `modules` from `sys.modules` that come from a user's files."""
    for name, module in modules.items():
        if name != "__main__" and _of_user(_source(module)):
            sys.modules.pop(name, None)


def _source(module: ModuleType) -> str:
    """The file of a module, or the folder of a namespace package; built-in ones have none."""
    try:
        return str(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "<none>"))
    except (KeyError, TypeError, AttributeError):  # a namespace package whose parent is gone
        return "<none>"


def _of_user(file: str) -> bool:
    """Whether a source is none of Python's import machinery, its library, an installed package or dynamod."""
    return not file.startswith(("<", _STDLIB, *_resolved(tuple(dynamod.__path__)))) and "-packages" not in file


@cache
def _resolved(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The beginnings of files in folders; looked up once, because each module that is loaded is compared with them."""
    return tuple(f"{Path(folder).resolve()}{os.sep}" for folder in folders)


def _user_frame(trace: TracebackType | None) -> str:
    """`file:line` of the innermost frame in a user's file, or nothing."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(trace)]
    return next((f"{file}:{line}" for file, line in reversed(frames) if _of_user(file)), "")
