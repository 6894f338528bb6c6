"""SIGINT and SIGTERM of a user's process, while it is connected."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Signals:
    """The first signal ends in good order, the second cuts what is open, the third is what it would be without us.

    So is the second when the loop has not handled the first: a file keeps it busy. The handlers are therefore Python's
    own and not the loop's. A file that sets its own handlers keeps them. Outside of the main thread nothing is handled.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, first: Callable[[str], object], second: Callable[[], object]
    ) -> None:
        self._loop, self._first, self._second = loop, first, second
        self._count = 0
        self._heard = False  # by the loop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._come)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._come:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _come(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._count == 1:
                self._loop.call_soon_threadsafe(self._begin, signal.Signals(number).name)
                return
            if self._count == 2 and self._heard:
                self._loop.call_soon_threadsafe(self._second)
                return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _begin(self, name: str) -> None:
        self._heard = True
        self._first(name)
