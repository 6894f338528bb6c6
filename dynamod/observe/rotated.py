"""A file of lines that is rotated by size and age. Processes may share it; it has whole lines only."""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".jsonl"
_ODD = re.compile(r"[^\w.+@-]")
_ROTATED = re.compile(r"\.(\d{8}T\d{6})(?:-(\d+))?\.jsonl$")


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file is closed, and how many closed files are kept.

    `size`: bytes of a file. `period`: seconds; files end at multiples of it in Unix time, 86400 at midnight UTC; 0: the
    time does not count. `files`: closed files of each name.
    """

    size: int
    period: float
    files: int


class RotatedFile:
    """`FOLDER/NAME.jsonl`, mode 0600, and closed files `NAME.TIME.jsonl` alongside, TIME in UTC.

    To be used in one thread at a time. Other processes may append to the same file: each takes the file's lock. `now`:
    Unix seconds. `failure`: why the last line is not in the file; empty when it is.
    """

    def __init__(self, folder: Path, name: str, rotation: Rotation) -> None:
        self.path = folder / f"{_ODD.sub('-', name)}{SUFFIX}"
        self.failure = ""
        self._rotation = rotation
        self._fd = -1

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines, each with its line break. Returns how many are in the file; `failure` says why not all are."""
        done, self.failure = 0, ""
        try:
            while done < len(lines):
                with self._held() as size:
                    fitting = self._fitting(lines, done, size)
                    if fitting:
                        taken = self._write(lines[done : done + fitting], size)
                        done += taken
                        if taken < fitting:
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    else:
                        self._rotate()
        except OSError as error:
            self.failure = error.strerror or str(error)
        return done

    def close(self) -> None:
        """Close the file. A later line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, lines: Sequence[bytes], size: int) -> int:
        """Append lines to the file of `size` bytes; how many are there. A line that does not fit leaves nothing."""
        data = b"".join(lines)
        written = os.write(self._fd, data)
        if written == len(data):
            return len(lines)
        whole = data.rfind(b"\n", 0, written) + 1
        os.ftruncate(self._fd, size + whole)
        return data.count(b"\n", 0, whole)

    def _fitting(self, lines: Sequence[bytes], first: int, size: int) -> int:
        """How many lines from `first` on go into the file of `size` bytes; 0: the file is to be closed."""
        period = self._rotation.period
        if size and period and os.fstat(self._fd).st_mtime // period < time.time() // period:
            return 0
        count = 0
        for line in lines[first:]:
            if size and size + len(line) > self._rotation.size:
                break
            size += len(line)
            count += 1
        return count

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """Hold the lock of the file that has the name now; gives its size."""
        while True:
            if self._fd < 0:
                self._open()
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            found = os.fstat(self._fd)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(found, os.lstat(self.path)):
                    break
            self.close()  # another process has rotated the file, or a program has removed it
        try:
            yield found.st_size
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        os.fchmod(self._fd, 0o600)  # whatever the file had

    def _rotate(self) -> None:
        """Give the file the name of a closed one, and remove closed files above the limit."""
        closed, mark = closed_files(self.path), time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        when, number = _age(closed[-1]) if closed else ("", 0)
        if mark <= when:  # within one second, or the clock was set back: the names stay in order
            mark = f"{when}-{number + 1}"
        new = self.path.with_name(f"{self.path.name.removesuffix(SUFFIX)}.{mark}{SUFFIX}")
        self.path.rename(new)
        self.close()
        for old in [*closed, new][: -self._rotation.files]:
            old.unlink(missing_ok=True)


def is_closed(path: Path) -> Path | None:
    """The path of the current file, for that of a closed one; None for every other file."""
    match = _ROTATED.search(path.name)
    return path.with_name(path.name[: match.start()] + SUFFIX) if match is not None else None


def closed_files(path: Path) -> list[Path]:
    """The closed files of a rotated file, the oldest first."""
    found = [other for other in path.parent.glob(f"*{SUFFIX}") if is_closed(other) == path]
    return sorted(found, key=_age)


def _age(path: Path) -> tuple[str, int]:
    match = _ROTATED.search(path.name)
    return (match[1], int(match[2] or 0)) if match is not None else ("", 0)
