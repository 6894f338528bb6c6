"""What the process logs, for `dynamo logs`, without touching any logger or handler of the user's file.

A handler at the root would keep `logging.basicConfig` from doing anything, and warnings from reaching the terminal. So
records are read where they are made: the factory of log records is public, and ours calls the one before.
"""

import asyncio
import copy
import logging
from collections.abc import Callable
from typing import Any, Self

from dynamod.message.node import Output
from dynamod.observe.lines import STANDARD, MarkedLines, fields

WAITING = 10_000
"""Records that may wait for the loop of the connection; more are dropped, and counted in the next line."""

_formatter = logging.Formatter()


class LogTap:
    """Sends lines of all records of the process to the daemon, from the loop of its connection."""

    def __init__(self, process: str, loop: asyncio.AbstractEventLoop, send: Callable[[Output], None]) -> None:
        self._process, self._loop, self._send = process, loop, send
        self._lines = MarkedLines(component=process)
        self._before: Callable[..., logging.LogRecord] = logging.LogRecord
        self._open = False
        self._waiting = self._dropped = 0

    def __enter__(self) -> Self:
        self._before = logging.getLogRecordFactory()
        self._open = True
        logging.setLogRecordFactory(self._made)
        return self

    def __exit__(self, *_: object) -> None:
        """Read no more. A factory that was set after ours stays, and continues to call it."""
        self._open = False
        if logging.getLogRecordFactory() == self._made:
            logging.setLogRecordFactory(self._before)

    def _made(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._before(*args, **kwargs)
        if self._open and isinstance(record.name, str):  # one without a name is a copy of another process's record
            self._read(record)
        return record

    def _read(self, record: logging.LogRecord) -> None:
        """Never raises: the caller only wanted to log."""
        if self._waiting >= WAITING:
            self._dropped += 1
            return
        try:
            seen = self._copy(record)
            self._waiting += 1
            self._loop.call_soon_threadsafe(self._write, seen)
        except Exception:  # not to be logged from in here; it is counted as lost
            self._waiting = max(0, self._waiting - 1)
            self._dropped += 1

    def _copy(self, record: logging.LogRecord) -> logging.LogRecord:
        """The text as it is now: arguments may change before the loop looks at them."""
        seen = copy.copy(record)
        try:
            seen.msg, seen.args = record.getMessage(), None
        except Exception:  # arguments that do not fit: the formatter shows both
            seen.msg, seen.args = f"{record.msg} {record.args!r}", None
        if record.exc_info and record.exc_info[1] is not None:
            seen.exc_text = _formatter.formatException(record.exc_info)
        seen.exc_info = None
        seen.__dict__.update({key: value for key, value in fields(record).items() if key not in STANDARD})
        return seen

    def _write(self, record: logging.LogRecord) -> None:
        self._waiting -= 1
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            note = copy.copy(record)
            note.msg, note.exc_text = f"{dropped} records were dropped: there were too many at once", None
            self._line(note)
        self._line(record)

    def _line(self, record: logging.LogRecord) -> None:
        try:
            line = self._lines.format(record).encode()
        except Exception:  # a field of the user's that no line can show
            self._dropped += 1
            return
        self._send(Output(self._process, "err", line))
