"""A line that a process logs for each request: lines of one moment become records and are written together."""

import asyncio
import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from typing import Any
from weakref import WeakSet

PAUSE = 0.1
"""Seconds between two writes. The first line after a pause is written at once.

Each write wakes the daemon and its command, which take the processor from this process: at 1,000 requests per second a
pause of 0.02 s costs this process 16 us more per request, and the others 30 us.
"""

_all: "WeakSet[FrequentLine]" = WeakSet()


class Holding(ABC):
    """A handler of logging that writes the lines between `hold` and `write_held` together."""

    @abstractmethod
    def hold(self) -> None:
        """Keep what comes."""

    @abstractmethod
    def write_held(self) -> None:
        """Write what has come."""


class FrequentLine:
    """`log` lines of `logger` with the text `template`, each with arguments of its own.

    To be used in one event loop at a time. The records are those of `Logger.log`, with the time and the caller of
    `log`, and with no fields that are bound to the task.
    """

    def __init__(self, logger: logging.Logger, template: str) -> None:
        self._logger, self._template = logger, template
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """The process is a new one: what waits is its parent's to write."""
        self._waiting: list[tuple[int, float, tuple[Any, ...]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # of the last line, on whose clock `due` is
        self._armed = False  # a timer writes what waits
        self._due = 0.0
        self._same: dict[str, Any] | None = None  # what all records have

    def log(self, level: int, *args: Any) -> None:
        """Write a line within PAUSE."""
        if self._same is None:
            self._same = _record(self._logger, self._template)
        self._waiting.append((level, time.time(), args))
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.get_running_loop()
            self._due, self._armed = 0.0, False
        if self._armed:
            return
        if loop.time() >= self._due:
            self._write_due()
        else:
            self._armed = True
            loop.call_at(self._due, self._write_due)

    def write(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, []
        logger, same = self._logger, self._same
        holding = [one for one in logging.getLogger().handlers if isinstance(one, Holding)]
        for handler in holding:
            handler.hold()
        for level, created, args in waiting:
            record = logging.LogRecord.__new__(logging.LogRecord)  # whose constructor looks at thread and process
            name, msecs = logging.getLevelName(level), created % 1 * 1000.0
            record.__dict__.update(same or {}, levelno=level, levelname=name, args=args, created=created, msecs=msecs)
            logger.handle(record)
        for handler in holding:
            handler.write_held()

    def _write_due(self) -> None:
        assert self._loop is not None
        self._armed, self._due = False, self._loop.time() + PAUSE
        self.write()


def _record(logger: logging.Logger, template: str) -> dict[str, Any]:
    caller = sys._getframe(2)
    code = caller.f_code
    made = logger.makeRecord(
        logger.name, logging.INFO, code.co_filename, caller.f_lineno, template, (), None, code.co_name
    )
    return made.__dict__


def _forget() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget)


def write_waiting() -> None:
    """Write what waits in this process."""
    for one in list(_all):
        one.write()
