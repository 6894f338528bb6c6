"""A copy of the installed package, from which a daemon and its processes run while an installer replaces the package.

`pip install -U` replaces files beneath a running daemon. Modules that are imported later, and processes that are
started again, would then be of another release, or of half of one. A checkout has no snapshot: its files change because
a developer wants that.
"""

import contextlib
import csv
import fcntl
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import dynamod
from dynamod.message.install import DISTRIBUTION

LINKED_BYTES = 1 << 20
"""Files above this size are data, and become symbolic links where they cannot be hard links."""
_RECORD = f"{DISTRIBUTION.replace('-', '_')}-*.dist-info/RECORD"
_TOP = ("dynamod", "dynamo")


def installed() -> Path | None:
    """The folder into which an installer has put this package; None where it runs in a checkout."""
    folder = _home()
    return folder if next(folder.glob(_RECORD), None) is not None else None


class Snapshot:
    """The copy in `folder`, of the package in `source`; made by `take`, gone with `give_back` and the folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self._uncompiled: list[str] = []
        self._made: set[str] = set()
        self._links, self._abandoned = True, False
        self._part = folder.with_suffix(".part")
        self._lock = -1
        self._record = _record(source)

    def take(self) -> None:
        """Copy what the installer has recorded: hard links within one file system, else copies. Raises OSError.

        The folder is there when all of it is. After `abandon`, which another thread may call, it does not come.
        """
        self._made.clear()
        self._uncompiled.clear()
        shutil.rmtree(self._part, ignore_errors=True)
        self._part.mkdir(mode=0o700)
        self._lock = os.open(self._part, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # a cleaner of /tmp passes by locked folders
        for name in _files(self._record):
            if self._abandoned:
                return
            self._copy(name)
            if name.endswith(".py") and not self._copy(_compiled(name)):
                self._uncompiled.append(name)
        self._part.rename(self.folder)

    def abandon(self) -> None:
        """Copy no more: the daemon ends."""
        self._abandoned = True

    @property
    def usable(self) -> bool:
        """Whether it is still there."""
        return (self.folder / "dynamod/__init__.py").is_file()

    @property
    def original(self) -> bool:
        """Whether the installed package is still the one that was copied."""
        return _record(self.source) == self._record

    def restore(self) -> None:
        """Copy again what a cleaner of temporary files has removed, if it can be had. Raises OSError."""
        if not self.usable and self.original:
            self._unlock()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.parent.mkdir(mode=0o700, exist_ok=True)
            self.take()

    def covers(self, python: str) -> bool:
        """Whether an interpreter belongs to the environment that the package is installed in, as far as its path says.

        A command of another environment brings its own release of the package.
        """
        return os.path.dirname(python) == os.path.dirname(sys.executable)

    def give_back(self) -> None:
        """Move compiled modules that are new to the installed package, while its sources are the same.

        The installer may compile nothing (uv does not); without this each daemon would compile all modules again.
        """
        for name in self._uncompiled:
            compiled = _compiled(name)
            made, kept = self.folder / compiled, self.source / compiled
            with contextlib.suppress(OSError):
                if _same(self.folder / name, self.source / name) and not kept.exists():
                    kept.parent.mkdir(exist_ok=True)
                    fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
                    fresh.write_bytes(made.read_bytes())
                    fresh.replace(kept)
        self._unlock()

    def folders(self) -> list[list[str]]:
        """Folders of the copy in the order of their removal: those of one list at the same time."""
        levels = defaultdict(list)
        for folder, _, _ in os.walk(self.folder):
            levels[folder.count(os.sep)].append(folder)
        return [levels[depth] for depth in sorted(levels, reverse=True)]

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _copy(self, name: str) -> bool:
        """False: there is no such file."""
        source, target = f"{self.source}/{name}", f"{self._part}/{name}"
        parent = os.path.dirname(target)
        if parent not in self._made:
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)
        try:
            if self._links:
                try:
                    os.link(source, target)
                    return True
                except FileNotFoundError:
                    return False
                except OSError:  # another file system, or the files belong to another user
                    self._links = False
            if os.stat(source).st_size > LINKED_BYTES:
                os.symlink(source, target)
            else:
                _copy_file(source, target)
        except FileNotFoundError:
            return False
        return True


def adopt(folder: Path) -> None:
    """Import from a snapshot whatever this process has not imported yet. The package stays second: a safety net."""
    before = str(_home())
    if before == str(folder):
        return
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__path__", None)
        if name.partition(".")[0] in _TOP and isinstance(path, list):
            ours = [str(folder) + entry.removeprefix(before) for entry in path if entry.startswith(before + os.sep)]
            path[:] = [*ours, *path]
    sys.path.insert(sys.path.index(before) if before in sys.path else len(sys.path), str(folder))


def remove(folder: str) -> None:
    """Remove a folder whose subfolders are gone, as far as that can be done."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            for entry in entries:
                os.unlink(entry)
        os.rmdir(folder)


def environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Variables of a process that imports from a snapshot; what a user has put on the path comes first."""
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(folder)]
    return {**environ, "PYTHONPATH": os.pathsep.join([*entries, str(folder)])}


def _home() -> Path:
    """The folder that the package is imported from."""
    return Path(dynamod.__path__[0]).parent


def _record(source: Path) -> str:
    """The installer's list of the distribution's files; empty while there is none."""
    try:
        return "".join(record.read_text(encoding="utf-8") for record in source.glob(_RECORD))
    except OSError:  # just removed
        return ""


def _files(record: str) -> Iterator[str]:
    """The files within the folder, without compiled ones."""
    for row in csv.reader(record.splitlines()):
        if row and row[0][:1] not in ("", ".", "/") and not row[0].endswith(".pyc"):
            yield row[0]


def _compiled(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/__pycache__/{file.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"


def _copy_file(source: str, target: str) -> None:
    """A compiled module is valid for a source of the same time, so that is copied too."""
    with open(source, "rb", buffering=0) as old, open(target, "xb", buffering=0) as new:
        facts = os.fstat(old.fileno())
        new.write(old.read())
        os.utime(new.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _same(one: Path, other: Path) -> bool:
    first, second = one.stat(), other.stat()
    return (first.st_size, first.st_mtime_ns) == (second.st_size, second.st_mtime_ns)
