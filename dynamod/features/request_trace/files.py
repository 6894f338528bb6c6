"""Where rows go: files that roll, plain or packed, and stderr."""

import errno
import gzip
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dynamod.observe.shared_file import SharedFile, opened


class RolledFile(SharedFile):
    """Rows of one process. `packed`: files `PATH.NNNNNN.jsonl.gz`; else PATH, which becomes `PATH.NNNNNN` when full.

    Each call writes whole rows; of packed files each call makes a member of gzip, so that a killed process leaves files
    that can be read. Packed files belong to one process; a plain file may be shared, and `roll_lines` counts the rows
    of this process there.
    """

    def __init__(self, path: Path, packed: bool, roll_bytes: int, roll_lines: int = 0) -> None:
        super().__init__(path)
        self._packed, self._most, self._most_lines = packed, roll_bytes, roll_lines
        self._number = 0  # of a packed file
        self._size = self._lines = 0  # of the open file, before packing

    def _fitting(self, lines: Sequence[bytes], first: int, size: int) -> int:
        count, size = 0, self._size if self._packed else size
        for line in lines[first:]:
            over = size + len(line) > self._most or (self._most_lines and self._lines + count >= self._most_lines)
            if over and size:
                break
            size += len(line)
            count += 1
        return count

    def _write(self, lines: Sequence[bytes], size: int) -> int:
        """All of these or none."""
        text = b"".join(lines)
        data = gzip.compress(text, 6) if self._packed else text
        if os.write(self._fd, data) < len(data):
            os.ftruncate(self._fd, size)
            return 0
        self._size += len(text)
        self._lines += len(lines)
        return len(lines)

    def _current(self) -> Path:
        return self._numbered(self._number) if self._packed else self.path

    def _open(self) -> None:
        self._size = self._lines = 0
        if not self._packed:
            super()._open()
            if os.fstat(self._fd).st_uid != os.getuid():  # the superuser may change what others have
                self.close()
                raise PermissionError(errno.EPERM, "the file is another user's")
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._number = self._next()
        while self._fd < 0:
            try:
                self._fd = opened(self._numbered(self._number), os.O_EXCL)
            except FileExistsError:
                self._number += 1

    def _roll(self) -> None:
        if not self._packed:
            self.path.rename(self._numbered(self._next()))
        self.close()

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
            sys.stderr.write(b"".join(lines).decode())
            sys.stderr.flush()
        except (OSError, ValueError) as error:
            self.failure = str(error)
            return 0
        return len(lines)

    def close(self) -> None:
        """It stays open."""
