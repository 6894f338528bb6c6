"""The log files of a node's components: bounded, rotated, read by `tail`."""

import heapq
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("dynamod.observe")

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*")
_ODD = re.compile(r"[^\w.+@-]")
_BLOCK = 64 * 1024


class LogStore:
    """One file per component in `folder`, at most `keep` files (the current and `.1`, ...) of `limit_bytes` each.

    A component `agg/Worker.0` has `agg/Worker.0.log`; `agg` or `agg/Worker` name all below it. Writing
    is synchronous and may happen in any thread. A disk that is full costs lines, is logged once, and raises nothing.
    """

    def __init__(self, folder: Path, limit_bytes: int = 4 * 1024 * 1024, keep: int = 2) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._keep = max(1, keep)
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()
        self._failing = False

    def write(self, component: str, line: str) -> None:
        """Append a line; further lines inside it (a traceback) belong to it."""
        line = line.rstrip("\n")
        error: OSError | None = None
        with self._lock:
            try:
                self._file(component).append(line, self._limit, self._keep)
            except OSError as caught:
                error = caught
            began, self._failing = error is not None and not self._failing, error is not None
        if began:
            log.error("log files in %s cannot be written, lines are lost: %s", self._folder, error)

    def components(self) -> list[str]:
        """Names of all that have a file, also from earlier runs."""
        found = (str(path.relative_to(self._folder))[: -len(".log")] for path in self._folder.rglob("*.log"))
        return sorted(found)

    def tail(self, component: str | None, lines: int) -> list[str]:
        """The last lines, of several components merged by time. An unknown component has none."""
        if lines <= 0:
            return []
        wanted = _safe(component) if component is not None else None
        names = [name for name in self.components() if _covers(wanted, name)]
        with self._lock:
            parts = [_last(self._folder / f"{name}.log", lines, self._keep) for name in names]
        if len(parts) == 1:
            return parts[0]
        merged = heapq.merge(*(_timed(part) for part in parts), key=lambda pair: pair[0])
        return [line for _, line in deque(merged, maxlen=lines)]

    def close(self) -> None:
        """Close the files. A later write opens its file again."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, component: str) -> "_File":
        file = self._files.get(component)
        if file is None:
            file = self._files[component] = _File(self._folder / f"{_safe(component)}.log")
        return file


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._size = 0
        self._torn = False

    def append(self, line: str, limit: int, keep: int) -> None:
        data = f"{line}\n".encode("utf-8", "replace")
        if self._fd < 0:
            self._open()
        if self._size and self._size + len(data) > limit:
            self._rotate(keep)
        if self._torn:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._size += written
        self._torn = written < len(data)
        if self._torn:
            raise OSError(28, "the disk is full")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self, keep: int) -> None:
        self.close()
        for number in range(keep - 1, 0, -1):
            older, newer = _numbered(self._path, number), _numbered(self._path, number - 1)
            if newer.exists():
                newer.replace(older)
        if keep == 1:
            self._path.unlink(missing_ok=True)
        self._open()


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _safe(component: str) -> str:
    """A relative path that stays in the folder."""
    parts = (_ODD.sub("_", part) for part in component.split("/"))
    return "/".join("_" if part.strip(".") == "" else part for part in parts)


def _covers(wanted: str | None, component: str) -> bool:
    return wanted is None or component == wanted or component.startswith((f"{wanted}.", f"{wanted}/"))


def _last(path: Path, lines: int, keep: int) -> list[str]:
    found: list[str] = []
    for number in range(keep):
        if len(found) >= lines:
            break
        try:
            data = _end(_numbered(path, number), lines - len(found))
        except OSError:
            continue
        found[:0] = data.decode("utf-8", "replace").removesuffix("\n").split("\n")[-(lines - len(found)) :]
    return found


def _end(path: Path, lines: int) -> bytes:
    """The file's end, which holds at least so many lines if the file does."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        blocks: deque[bytes] = deque()
        newlines = 0
        while position > 0 and newlines <= lines:
            size = min(_BLOCK, position)
            position -= size
            file.seek(position)
            block = file.read(size)
            newlines += block.count(b"\n")
            blocks.appendleft(block)
    return b"".join(blocks)


def _timed(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each line with its time; one that has none belongs to the line before."""
    when = ""
    for line in lines:
        found = _TIME.match(line)
        when = found[0] if found is not None else when
        yield when, line
