"""Where rows go: files that follow each other, plain or compressed, and stderr. Used in one thread at a time."""

import gzip
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_ODD = re.compile(r"[^\w.+@-]")


class TraceFiles:
    """Files `PATH.PROCESS.NUMBER.jsonl` or `.jsonl.gz`, mode 0600, the next one from `size` bytes or `lines` rows on.

    A compressed file is a sequence of gzip members, one for what is written at once: a process that is killed leaves a
    file that can be read to its end. `failure`: why the last row is not there; empty when it is.
    """

    def __init__(self, path: Path, process: str, suffix: str, size: int, lines: int) -> None:
        self._base, self._suffix, self._size, self._lines = f"{path}.{_ODD.sub('-', process)}", suffix, size, lines
        self.failure = ""
        self._fd, self._number = -1, -1
        self._written = self._count = 0  # bytes before compression, and rows, of this file

    @property
    def path(self) -> Path:
        """The file of the last rows."""
        return Path(f"{self._base}.{max(self._number, 0):06}{self._suffix}")

    def append(self, lines: Sequence[bytes]) -> int:
        """Append rows, each with its line break. Returns how many are there; `failure` says why not all are."""
        done, self.failure = 0, ""
        try:
            while done < len(lines):
                if self._fd < 0 or self._full():
                    self._next()
                count = self._fitting(lines, done)
                data = b"".join(lines[done : done + count])
                self._write(gzip.compress(data, 6) if self._suffix.endswith(".gz") else data)
                self._written, self._count, done = self._written + len(data), self._count + count, done + count
        except OSError as error:
            self.failure = error.strerror or str(error)
        return done

    def close(self) -> None:
        """Close the file. A later row begins another one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _full(self) -> bool:
        return self._written >= self._size or 0 < self._lines <= self._count

    def _fitting(self, lines: Sequence[bytes], first: int) -> int:
        """How many rows from `first` on go into this file: one at least."""
        count, size = 0, self._written
        for line in lines[first:]:
            if count and (size >= self._size or 0 < self._lines <= self._count + count):
                break
            count, size = count + 1, size + len(line)
        return count

    def _write(self, data: bytes) -> None:
        """Append all or nothing. Raises OSError."""
        begin = os.fstat(self._fd).st_size
        if (written := os.write(self._fd, data)) < len(data):
            os.ftruncate(self._fd, begin)
            raise OSError(28, os.strerror(28), str(written))

    def _next(self) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while self._fd < 0:
            self._number += 1
            try:
                self._fd = os.open(self.path, flags, 0o600)
            except FileExistsError:
                continue  # of an earlier process of that name
        self._written = self._count = 0


class Stderr:
    """Rows in the log of the process."""

    path = Path("stderr")
    failure = ""

    def append(self, lines: Sequence[bytes]) -> int:
        """Print rows."""
        for line in lines:
            sys.stderr.write(line.decode())
        sys.stderr.flush()
        return len(lines)

    def close(self) -> None:
        """Nothing to do."""
