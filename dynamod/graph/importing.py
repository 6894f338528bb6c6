"""Importing a user's graph files without a trace in this process, and its services for good in a child.

A graph is looked for in places: the current folder, the config file's folder, the files shipped with dynamod. Two
places may both have a package `graphs`, and a user edits files and reloads; so `Importer` sets aside what it finds
loaded from its places, imports afresh, and on leaving puts `sys.modules` and `sys.path` back. Packages outside the
places (installed ones, dynamod itself) stay cached.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from dynamod.message.errors import UserError

_OURS = Path(__file__).resolve().parent.parent
_STDLIB = os.path.dirname(os.__file__) + os.sep


def shipped_root() -> Path:
    """Folder with the `graphs/` and `configs/` that come with dynamod: in the wheel, or in the checkout."""
    wheel = _OURS / "shipped"
    return wheel if wheel.is_dir() else _OURS.parent


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


def import_module(name: str, front: Sequence[str], file: str = "") -> ModuleType:
    """Import `name` from the first of `front` that has it, then from the shipped files, else as Python would.

    `file`: where to load it from when no folder has it by that name (`my-graph.py`). Raises whatever the module does.
    """
    roots = list(dict.fromkeys([*front, str(shipped_root())]))
    for entry in reversed(front):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    if roots[-1] not in sys.path:
        sys.path.append(roots[-1])
    found = next(((root, path) for root in roots if (path := find_module(root, name))), None)
    if found is None:
        if file and importlib.util.find_spec(name.partition(".")[0]) is None:
            return _load(importlib.util.spec_from_file_location(name, file), name)
        return importlib.import_module(name)
    root, path = found
    parents = name.split(".")[:-1]
    for depth in range(1, len(parents) + 1):
        _package(".".join(parents[:depth]), [root, *(other for other in roots if other != root)])
    module = importlib.import_module(name)
    if not module.__file__ or Path(module.__file__).resolve() != path.resolve():
        raise UserError(f"{path} cannot be imported: module '{name}' is already {module.__file__}", "rename the file")
    return module


def file_module_name(file: Path) -> str:
    """A module name for a file whose own name is none."""
    return re.sub(r"\W", "_", file.stem)


class Importer:
    """Context manager: modules of `places` imported inside live only inside.

    Not for two threads at once. `front` is what a child must put in front of `sys.path` to import the same.
    """

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = list(dict.fromkeys(place.resolve() for place in places))
        self.front: list[str] = []

    def __enter__(self) -> Self:
        self._path, self._before = list(sys.path), dict(sys.modules)
        importlib.invalidate_caches()
        self._roots: list[Path] = []
        self._again: list[str] = []
        for place in self.places:
            self._set_aside(place)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, module in list(sys.modules.items()):
            if self._before.get(name) is not module and any(_below(module, name, root) for root in self._roots):
                del sys.modules[name]
        for name in self._again:
            sys.modules.pop(name, None)
        for name, module in self._before.items():
            sys.modules.setdefault(name, module)
        sys.path[:] = self._path

    def module(self, name: str, root: Path) -> ModuleType:
        """Import `name`, known to lie below `root`."""
        self.use(root)
        top = name.partition(".")[0]
        loaded = sys.modules.get(top)
        if loaded is not None and not _installed(loaded, top) and not any(_below(loaded, top, r) for r in self._roots):
            _drop(top)  # a namesake from a folder that is no place of this load
        with self._blame(name):
            return import_module(name, self.front)

    def module_at(self, file: Path) -> ModuleType:
        """Import the file at a path: as part of its package if it is in one."""
        known = module_of_file(file)
        self.use(known[0] if known else file.parent)
        for place in self.places:  # what it imports may be written relative to the folder one works in
            self.use(place)
        if known is not None:
            return self.module(known[1], known[0])
        name = file_module_name(file)
        with self._blame(name):
            return import_module(name, self.front, str(file))

    def installed(self, name: str, *, afresh: bool) -> ModuleType | None:
        """A module that Python itself finds, or None. `afresh`: execute it again, because its links are wanted."""
        try:
            if importlib.util.find_spec(name) is None:
                return None
        except (ImportError, ValueError, AttributeError):
            return None
        if afresh and name in sys.modules:
            self._again.append(name)
            del sys.modules[name]
        with self._blame(name):
            return importlib.import_module(name)

    def use(self, root: Path) -> None:
        """Put a folder in front of `sys.path`."""
        root = root.resolve()
        self._set_aside(root)
        if root != shipped_root().resolve() and str(root) not in self.front:
            self.front.append(str(root))

    def sys_path(self) -> tuple[str, ...]:
        """What a child needs in front: our folders, then those a graph file added itself."""
        known = {*self._path, str(shipped_root())}
        added = [os.path.abspath(entry) for entry in sys.path if entry not in known]
        return tuple(dict.fromkeys([*self.front, *added]))

    def _set_aside(self, root: Path) -> None:
        if root in self._roots:
            return
        self._roots.append(root)
        for name, module in list(sys.modules.items()):
            if _below(module, name, root):
                del sys.modules[name]

    @contextmanager
    def _blame(self, name: str) -> Iterator[None]:
        """Errors of the user's file become one line with file and line."""
        try:
            yield
        except SyntaxError as error:
            raise UserError(f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}") from error
        except (Exception, SystemExit) as error:
            place = _user_frame(error.__traceback__) or name
            if isinstance(error, UserError):
                raise UserError(f"{place}: {error}" if place != name else str(error), error.hint) from error
            text = " ".join(str(error).split())
            raise UserError(f"{place}: {type(error).__name__}: {text}") from error


def _load(spec: Any, name: str) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package(name: str, roots: Sequence[str]) -> None:
    """Make the parent package of a module.

    Without an `__init__.py` it spans all roots, nearest first, so that a user's folder `graphs` and the shipped one
    are one package to both.
    """
    folders = [folder for root in roots if os.path.isdir(folder := os.path.join(root, *name.split(".")))]
    if loaded := sys.modules.get(name):
        known = getattr(loaded, "__path__", None)
        if isinstance(known, list) and folders[0] not in known and not _installed(loaded, name):
            known.append(folders[0])  # its namesake came first; what it lacks is found here
        return
    init = os.path.join(folders[0], "__init__.py")
    if os.path.isfile(init):
        _load(importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folders[0]]), name)
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = folders
        sys.modules[name] = importlib.util.module_from_spec(spec)


def _drop(top: str) -> None:
    for name in list(sys.modules):
        if name == top or name.startswith(f"{top}."):
            del sys.modules[name]


def _sources(module: ModuleType) -> list[str]:
    file = getattr(module, "__file__", None)
    if file:
        return [os.path.abspath(file)]
    try:
        return [os.path.abspath(entry) for entry in getattr(module, "__path__", ())]
    except (KeyError, TypeError, AttributeError):  # a namespace package whose parent is gone
        return []


def _installed(module: ModuleType, name: str) -> bool:
    """It belongs to Python, an installed package or us, and is never imported twice."""
    if name.partition(".")[0] in ("dynamod", "dynamo", "__main__") or name in sys.builtin_module_names:
        return True
    return any(
        source.startswith(_STDLIB) or "site-packages" in source or "dist-packages" in source
        for source in _sources(module)
    )


def _below(module: ModuleType, name: str, root: Path) -> bool:
    """It was imported under this name from folder `root`."""
    sources = _sources(module)
    if not any(source.startswith(str(root)) for source in sources):
        return False
    if _installed(module, name) or (root == shipped_root().resolve() and name.partition(".")[0] != "graphs"):
        return (
            False  # of the shipped root, which may be the checkout with its tests, only the graphs are ours to reload
        )
    base = os.path.join(root, *name.split("."))
    expected = (base + ".py", os.path.join(base, "__init__.py"), base)
    own_file = "." not in name and any(
        os.path.dirname(s) == str(root) and file_module_name(Path(s)) == name for s in sources
    )
    return own_file or any(source in expected for source in sources)


def _user_frame(trace: TracebackType | None) -> str | None:
    """`file:line` of the innermost frame that is neither Python's import machinery, an installed package nor ours."""
    place = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        outside = file.startswith(("<", _STDLIB, str(_OURS) + os.sep)) or "site-packages" in file
        if not outside:
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
