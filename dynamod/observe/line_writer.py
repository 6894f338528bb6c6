"""Lines for a rotated file, written by a thread: lines of one moment together, and each line counted."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from .backlog import Backlog

log = logging.getLogger("dynamod.observe")

PAUSE_S = 0.05
"""Seconds for which lines are gathered by default; a process that is killed loses these at most."""
GATHERED = 256 * 1024
"""Bytes that are handed to the thread at once."""
WAITING = 8 * 1024 * 1024
"""Bytes that may wait for a disk that is slow."""
SAY_S = 60.0
"""Seconds between two log lines about dropped lines."""


class LineFile(Protocol):
    """Where lines go: a `rotated.RotatedFile`, for instance. Used in one thread at a time.

    `failure`: why the last line is not there; empty when it is.
    """

    failure: str

    @property
    def path(self) -> Path:
        """For the log."""

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines, each with its line break. Returns how many are there."""
        ...

    def close(self) -> None:
        """Nothing more comes, for now."""


class LineWriter:
    """Takes lines in an event loop; a thread writes them to `file`.

    `what`: the lines, for the log. `lost(count)` makes the line that tells readers of the file that `count` lines are
    missing there; None: nothing tells them. `pause`: seconds for which lines are gathered. `gathered`: bytes that are
    handed over at once. `most`: lines that may be on their way; 0: any number. `taken` lines are `written`, `dropped`,
    or still on their way.
    """

    def __init__(
        self,
        file: LineFile,
        what: str,
        lost: Callable[[int], bytes] | None = None,
        waiting: int = WAITING,
        *,
        pause: float = PAUSE_S,
        gathered: int | None = None,
        most: int = 0,
    ) -> None:
        self._file, self._what, self._lost = file, what, lost
        self._limits = pause, GATHERED if gathered is None else gathered, most
        self._backlog: Backlog[list[bytes]] = Backlog(self._write, waiting)
        self._gathered: list[bytes] = []
        self._size = 0  # bytes of these
        self._timer: asyncio.TimerHandle | None = None
        self.taken = self.written = 0
        self._refused = self._failed = 0  # dropped: as too many waited; as the file took no more
        self._said = 0  # dropped, as the file says
        self._next_word = 0.0

    @property
    def dropped(self) -> int:
        """Lines that are in no file."""
        return self._refused + self._failed

    def put(self, line: bytes) -> None:
        """Have a line with its line break written. To be called in an event loop."""
        pause, full, most = self._limits
        self.taken += 1
        if most and self.taken - self.written - self._refused - self._failed > most:
            self._refused += 1
            self._complain("the writer is too slow")
            return
        self._gathered.append(line)
        self._size += len(line)
        if self._size > full or len(self._gathered) * 2 > most > 0:
            self.hand_over()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause, self.hand_over)

    def hand_over(self) -> None:
        """Give the thread what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, size = self._gathered, self._size
        self._gathered, self._size = [], 0
        if lines and not self._backlog.put(lines, "", size):
            self._refused += len(lines)
            self._complain("the disk is too slow")

    async def close(self, seconds: float) -> None:
        """Have all lines written within so many seconds. Says how many were dropped, if any."""
        self.hand_over()
        await asyncio.to_thread(self._backlog.flush, seconds)
        if self._backlog.idle:
            self._file.close()
        if missing := self.taken - self.written:
            log.error("%s: %d of %d lines are in no file", self._what, missing, self.taken)

    def _write(self, lines: list[bytes], _text: str, _dropped: int) -> None:
        """Called in the thread."""
        count, dropped = len(lines), self.dropped
        if dropped > self._said and self._lost is not None:
            lines.insert(0, self._lost(dropped - self._said))
        done = self._file.append(lines)
        if done and len(lines) > count:
            self._said, done = dropped, done - 1
        self.written += done
        self._failed += count - done
        if done < count:
            self._complain(self._file.failure)

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + SAY_S
            log.error("%s: %s: %s; %d lines were dropped so far", self._what, self._file.path, why, self.dropped)
