"""What a killed process has not written: numbers in shared memory, which outlive the process, and their reader.

A process that is killed loses the rows that it was gathering. The next process that traces to the same path says how
many. The numbers are on no disk: a disk that is full or slow cannot hold a request up.
"""

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from dynamod.observe.line_writer import LineWriter

from .files import RolledFile

log = logging.getLogger("dynamod.frontend")

FOLDER = Path("/dev/shm")
_COUNTS = Struct("<QQQ")  # taken, written, dropped
_COUNT = Struct("<Q")


def _prefix(path: Path) -> str:
    """Of the names of the ledgers of a path, of this user."""
    mark = hashlib.blake2b(str(path.absolute()).encode(), digest_size=8).hexdigest()
    return f"dynamod-trace-{os.getuid()}-{mark}-"


def _folder() -> Path:
    return FOLDER if FOLDER.is_dir() else Path(tempfile.gettempdir())


class Ledger:
    """How many rows this process has taken for a path, and how many are written or counted as dropped.

    Held by a lock for as long as the process lives. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        for number in range(1000):
            self._file = _folder() / f"{_prefix(path)}{os.getpid()}-{number}"
            with contextlib.suppress(FileExistsError):
                self._fd = os.open(self._file, flags, 0o600)
                break
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.write(self._fd, _COUNTS.pack(0, 0, 0))  # the page is there from now on
        self._page = mmap.mmap(self._fd, _COUNTS.size)
        self._written = 0

    def note(self, writer: LineWriter, coming: int) -> None:
        """Note the counts of a writer. `coming`: rows that it will get."""
        _COUNT.pack_into(self._page, 0, writer.taken + coming)
        _COUNT.pack_into(self._page, 2 * _COUNT.size, writer.dropped)

    def wrote(self, rows: int) -> None:
        """So many more are in a file. Called in the thread that writes."""
        self._written += rows
        _COUNT.pack_into(self._page, _COUNT.size, self._written)

    def close(self) -> None:
        """Nothing is on its way any more."""
        self._page.close()
        self._file.unlink(missing_ok=True)
        os.close(self._fd)


class LedgerFile(RolledFile):
    """A file whose rows are noted."""

    def __init__(self, ledger: Ledger, path: Path, packed: bool, roll_bytes: int, roll_lines: int) -> None:
        super().__init__(path, packed, roll_bytes, roll_lines)
        self._ledger = ledger

    def append(self, lines: Sequence[bytes]) -> int:
        """As of a `RolledFile`."""
        done = super().append(lines)
        self._ledger.wrote(done)
        return done


def told(path: Path, process: str) -> int:
    """Say what processes have lost that were killed; how many rows at most."""
    lost = 0
    for file in _folder().glob(f"{_prefix(path)}*"):
        try:
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held while its process lives
            if os.fstat(fd).st_uid != os.getuid():
                continue
            data = os.pread(fd, _COUNTS.size, 0)
            taken, written, dropped = _COUNTS.unpack(data) if len(data) == _COUNTS.size else (0, 0, 0)
            file.unlink(missing_ok=True)
        except OSError:
            continue
        finally:
            os.close(fd)
        if (missing := taken - written - dropped) > 0:
            lost += missing
            text = "%s: request trace %s: a process was killed; up to %d of its %d rows are in no file"
            log.error(text, process, path, missing, taken)
    return lost
