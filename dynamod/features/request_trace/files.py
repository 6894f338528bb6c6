"""Where rows go: files that roll, plain or packed, and stderr."""

import errno
import fcntl
import gzip
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path


class RolledFile:
    """Rows of one process. `packed`: files `PATH.NNNNNN.jsonl.gz`; else PATH, which becomes `PATH.NNNNNN` when full.

    Each call writes whole rows; of packed files each call makes a member of gzip, so that a killed process leaves files
    that can be read. Files have mode 0600. Packed files belong to one process; a plain file may be shared.
    """

    def __init__(self, path: Path, packed: bool, roll_bytes: int, roll_lines: int = 0) -> None:
        self.path = path
        self.failure = ""
        self._packed, self._most, self._most_lines = packed, roll_bytes, roll_lines
        self._fd = -1
        self._size = self._lines = 0  # of the open file, before packing

    def append(self, lines: Sequence[bytes]) -> int:
        """Append rows, each with its line break. Returns how many are there; `failure` says why not all are."""
        done, self.failure = 0, ""
        try:
            while done < len(lines):
                if self._fd < 0:
                    self._open()
                fitting = self._fitting(lines[done:])
                if not fitting:
                    self._roll()
                    continue
                self._write(lines[done : done + fitting])
                done += fitting
        except OSError as error:
            self.failure = error.strerror or str(error)
        return done

    def close(self) -> None:
        """Close the file. Later rows go to another one, if packed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fitting(self, lines: Sequence[bytes]) -> int:
        count, size = 0, self._size
        for line in lines:
            over = size + len(line) > self._most or (self._most_lines and self._lines + count >= self._most_lines)
            if over and size:
                break
            size += len(line)
            count += 1
        return count

    def _write(self, lines: Sequence[bytes]) -> None:
        """All of these or none."""
        text = b"".join(lines)
        data = gzip.compress(text, 6) if self._packed else text
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            before = os.fstat(self._fd).st_size
            if os.write(self._fd, data) < len(data):
                os.ftruncate(self._fd, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._size += len(text)
        self._lines += len(lines)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._size = self._lines = 0
        if not self._packed:
            self._fd = os.open(self.path, flags, 0o600)
            facts = os.fstat(self._fd)
            if facts.st_uid != os.getuid():
                self.close()
                raise PermissionError(errno.EPERM, "the file is another user's")
            self._size = facts.st_size
            return
        number = self._next()
        while self._fd < 0:
            try:
                self._fd = os.open(self._numbered(number), flags | os.O_EXCL, 0o600)
            except FileExistsError:
                number += 1

    def _roll(self) -> None:
        self.close()
        if not self._packed:
            self.path.rename(self._numbered(self._next()))

    def _next(self) -> int:
        """A number above those of all files that are there."""
        name = re.compile(re.escape(self.path.name) + r"\.(\d{6,})(?:\.jsonl\.gz)?")
        numbers = [int(match[1]) for one in self.path.parent.iterdir() if (match := name.fullmatch(one.name))]
        return max(numbers, default=-1) + 1

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number:06d}{'.jsonl.gz' if self._packed else ''}")


class Stderr:
    """Rows on stderr, where a collector of log lines finds them."""

    path = Path("/dev/stderr")

    def __init__(self) -> None:
        self.failure = ""

    def append(self, lines: Sequence[bytes]) -> int:
        """Write rows. Returns how many are there."""
        self.failure = ""
        try:
            for count, line in enumerate(lines):  # noqa: B007 - of the last one
                sys.stderr.write(line.decode())
            sys.stderr.flush()
        except (OSError, ValueError) as error:
            self.failure = str(error)
            return count
        return len(lines)

    def close(self) -> None:
        """It stays open."""
