"""Lines that wait for a thread to write them, so that a slow disk or a reader that stopped never blocks the others."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from .bounded import bounded

T = TypeVar("T")

LIMIT = 1 << 20
"""Characters that may wait."""
LINGER = 5.0
"""Seconds that the thread stays when there is nothing to write."""
FLUSH = 0.5
"""Seconds that lines get at the end of the process."""

_all: "WeakSet[Backlog[Any]]" = WeakSet()


def written() -> bool:
    """Give all lines of this process a last moment; whether they are written.

    If not, only `os._exit` ends the process: the interpreter would wait for the thread that writes.
    """
    backlogs = list(_all)
    for one in backlogs:
        one.flush(FLUSH)
    return all(one.idle for one in backlogs)


class Backlog(Generic[T]):
    """Calls `write(target, text, dropped)` in a thread, in order. `dropped`: lines lost since the last call, because
    more than `limit` characters (or bytes of targets) waited. May be used from any thread, from that of `write` too,
    which must not raise. Texts that follow each other for one target are one text, up to `piece` characters.
    """

    def __init__(self, write: Callable[[T, str, int], None], limit: int = LIMIT, *, piece: int = 0) -> None:
        self._write, self._limit, self._piece = write, limit, piece
        self._waiting: deque[tuple[T, str, int]] = deque()
        self._changed = threading.Condition()
        self._size = self._dropped = 0
        self._busy = False
        self._thread: threading.Thread | None = None
        _all.add(self)
        bounded(self, "log lines to write", limit, lambda one: one._size, "characters")

    @property
    def idle(self) -> bool:
        """Whether all is written."""
        return not (self._waiting or self._busy)

    def put(self, target: T, text: str, size: int = 0) -> bool:
        """Have a line written, or count it as dropped: then False. `size`: of a target that has the text itself."""
        size = size or len(text)
        with self._changed:
            if self._size + size > self._limit:
                self._dropped += 1
                return False
            self._size += size
            self._waiting.append((target, text, size))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="log writer", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread to be had now: the lines wait for the next one
                    thread.start()
                    self._thread = thread
            self._changed.notify_all()
            return True

    def flush(self, timeout: float) -> None:
        """Wait until all is written, `timeout` seconds at most."""
        if threading.current_thread() is not self._thread:
            with self._changed:
                self._changed.wait_for(lambda: self.idle, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._waiting, LINGER):
                    self._thread = None
                    return
                self._busy = True
                target, texts = self._take()
                dropped, self._dropped = self._dropped, 0
            self._write(target, "".join(texts), dropped)

    def _take(self) -> tuple[T, list[str]]:
        target, text, taken = self._waiting.popleft()
        texts, waiting = [text], self._waiting
        while self._piece and waiting and taken + waiting[0][2] <= self._piece and waiting[0][0] == target:
            _, text, size = waiting.popleft()
            texts.append(text)
            taken += size
        self._size -= taken
        return target, texts
