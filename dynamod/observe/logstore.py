"""The log files of a node's components: bounded, rotated, read by `tail`."""

import contextlib
import heapq
import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from .backlog import LIMIT, Backlog

log = logging.getLogger("dynamod.observe")

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*")
_ODD = re.compile(r"[^\w.+@-]")
_BLOCK = 64 * 1024
FLUSH = 1.0
"""Seconds that waiting lines get before a read and at the end."""
LOOK = 1.0
"""Seconds after which a file is looked for again: another program may have removed it."""


class LogStatistics(msgspec.Struct, frozen=True):
    """The disk of the log files."""

    free_bytes: Annotated[int, Meta(description="Room on the disk of the log files.")]
    failing: Annotated[bool, Meta(description="1: the last line could not be written.")]


class LogStore:
    """Two files per component in `folder`: the current one, and `.1`, the one before; of `limit_bytes` each.

    A component `agg/Worker.0` has `agg/Worker.0.log`. One thread writes; `write` may be called in any. A disk that is
    full costs lines and is logged once, one that hangs costs lines; neither raises anything.
    """

    def __init__(self, folder: Path, limit_bytes: int = 4 * 1024 * 1024) -> None:
        self.folder, self._limit = folder, limit_bytes
        self.failure = ""
        """Why the last line was lost; empty when it was written."""
        self._files: dict[str, _File] = {}
        self._closed = False
        self._backlog = Backlog(self._append, max(LIMIT, limit_bytes), piece=min(_BLOCK, limit_bytes // 64))

    def write(self, component: str, line: str) -> None:
        """Append a line; further lines inside it (a traceback) belong to it."""
        self._backlog.put(component, line.rstrip("\n") + "\n")

    def _append(self, component: str, lines: str, dropped: int) -> None:
        if self._closed and not self.folder.exists():  # removed for good: it must not come back
            return
        if dropped:
            lines += f"  {dropped} lines were dropped because the disk was too slow\n"
        error: OSError | None = None
        try:
            if component not in self._files:
                self._files[component] = _File(self.folder / f"{_safe(component)}.log")
            self._files[component].append(lines.encode("utf-8", "replace"), self._limit)
        except OSError as caught:
            error = caught
        began, self.failure = error is not None and not self.failure, str(error or "")
        if began:
            log.error("log files in %s cannot be written, lines are lost: %s", self.folder, error)

    def flush(self) -> None:
        """Wait a moment for what is not written yet."""
        self._backlog.flush(FLUSH)

    def components(self) -> list[str]:
        """Names of all that have a file, also from earlier runs. Waits for what is not written yet."""
        self.flush()
        return sorted(str(path.relative_to(self.folder))[: -len(".log")] for path in self.folder.rglob("*.log"))

    def tail(self, components: Iterable[str], lines: int) -> list[str]:
        """The last lines of these components, merged by time. One that has no file has none. Waits as `components`."""
        self.flush()
        parts = [_last(self.folder / f"{name}.log", lines) for name in components]
        merged = heapq.merge(*map(_timed, parts), key=lambda pair: pair[0])
        return [line for _, line in deque(merged, maxlen=lines)]

    def statistics(self) -> LogStatistics:
        """The disk now; 0 bytes free where the folder cannot be looked at."""
        free = 0
        with contextlib.suppress(OSError):
            disk = os.statvfs(self.folder)
            free = disk.f_bavail * disk.f_frsize
        return LogStatistics(free, bool(self.failure))

    def close(self) -> None:
        """Close the files. A later write opens its file again, if the folder is still there."""
        self.flush()
        self._closed = True
        if self._backlog.idle:  # else the disk hangs, and the thread still has them
            for file in self._files.values():
                file.close()
            self._files.clear()


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._size = 0
        self._torn = False
        self._looked = 0.0

    def append(self, data: bytes, limit: int) -> None:
        if (now := time.monotonic()) > self._looked + LOOK:
            self._looked = now
            if not self._path.exists():
                self.close()
        if self._fd < 0:
            self._open()
        if self._size and self._size + len(data) > limit:
            self.close()
            self._path.replace(_older(self._path))
            self._open()
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
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o640)
        self._size = os.fstat(self._fd).st_size


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _safe(component: str) -> str:
    """A relative path that stays in the folder."""
    parts = (_ODD.sub("_", part) for part in component.split("/"))
    return "/".join("_" if part.strip(".") == "" else part for part in parts)


def _last(path: Path, lines: int) -> list[str]:
    found: list[str] = []
    for file in (path, _older(path)):
        missing = lines - len(found)
        if missing > 0:
            with contextlib.suppress(OSError):
                text = _end(file, missing).decode("utf-8", "replace")
                found[:0] = text.removesuffix("\n").split("\n")[-missing:] if text else []
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
