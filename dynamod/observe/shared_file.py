"""A file of lines that processes may share: each takes its lock, and leaves it when another one has rolled it."""

import contextlib
import errno
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path


class SharedFile(ABC):
    """Lines at `path`, mode 0600, whole ones only. To be used in one thread at a time.

    `failure`: why the last line is not in the file; empty when it is. Subclasses say when a file is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure = ""
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
                        self._roll()
        except OSError as error:
            self.failure = error.strerror or str(error)
        return done

    def close(self) -> None:
        """Close the file. A later line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @abstractmethod
    def _fitting(self, lines: Sequence[bytes], first: int, size: int) -> int:
        """How many lines from `first` on go into the file of `size` bytes; 0: the file is to be rolled."""

    @abstractmethod
    def _roll(self) -> None:
        """Give the file another name, and close it."""

    def _write(self, lines: Sequence[bytes], size: int) -> int:
        """Append lines to the file of `size` bytes; how many are there. A line that does not fit leaves nothing."""
        data = b"".join(lines)
        written = os.write(self._fd, data)
        if written == len(data):
            return len(lines)
        whole = data.rfind(b"\n", 0, written) + 1
        os.ftruncate(self._fd, size + whole)
        return data.count(b"\n", 0, whole)

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """Hold the lock of the file that has the name now; gives its size."""
        while True:
            if self._fd < 0:
                self._open()
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            found = os.fstat(self._fd)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(found, os.lstat(self._current())):
                    break
            self.close()  # another process has rolled the file, or a program has removed it
        try:
            yield found.st_size
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _current(self) -> Path:
        """The name of the open file."""
        return self.path

    def _open(self) -> None:
        """Open the file. Raises OSError, also for a file of another user."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = opened(self.path)
        os.fchmod(self._fd, 0o600)  # whatever the file had


def opened(path: Path, flags: int = 0) -> int:
    """A descriptor that appends to a file, which is made with mode 0600. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
