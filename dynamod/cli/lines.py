"""Log records of the processes of a graph, as the command that serves it prints them."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from dynamod.message.node import Output
from dynamod.observe.capture import LineReader, reemit

HELD = 10_000
"""Lines that may wait until an answer is printed."""
SHORTLY = 1.0
"""Seconds that an error waits before the graph is ready: the line that ends the command may say the same."""


class Lines:
    """Prints what processes say, in order. `busy`: whether an answer is being printed, which lines would cut in two.

    Until the graph is ready errors wait for a moment, and a traceback that was printed is not printed again: one
    mistake is one line, however many processes report it, and however often they try.
    """

    def __init__(self, busy: Callable[[], bool], emit: Callable[[logging.LogRecord], None] = reemit) -> None:
        self._busy, self._emit = busy, emit
        self._waiting: deque[Output] = deque(maxlen=HELD)
        self._readers: dict[str, LineReader] = {}
        self._errors: list[logging.LogRecord] = []
        self._told: tuple[str, ...] = ()
        self._tracebacks: set[str] = set()
        self._ready = False

    def take(self, output: Output) -> None:
        """A line has come."""
        self._waiting.append(output)
        if not self._busy():
            self.flush()

    def flush(self) -> None:
        """Print what has waited for the end of an answer."""
        while self._waiting:
            output = self._waiting.popleft()
            if (reader := self._readers.get(output.process)) is None:
                emit = self._daemons if output.process == "dynamod" else self._print
                reader = self._readers[output.process] = LineReader(output.process, emit)
            reader.feed("out" if output.stream == "out" else "err", output.line)

    def ready(self) -> None:
        """The graph is ready: from now on nothing waits."""
        self._ready = True
        self.release()

    def release(self, told: Iterable[str] = ()) -> None:
        """Print the errors that wait, except errors with one of the texts `told`: now, or of an earlier call."""
        errors, self._errors = self._errors, []
        self._told += tuple(filter(None, told))
        for record in errors:
            if not any(text in record.getMessage() for text in self._told):
                self._emit(record)

    def _daemons(self, record: logging.LogRecord) -> None:
        """The daemon's own records: shown as this command's flags say."""
        if logging.getLogger(record.name).isEnabledFor(record.levelno):
            record.__dict__.pop("component", None)
            self._print(record)

    def _print(self, record: logging.LogRecord) -> None:
        if self._ready or record.levelno < logging.ERROR or logging.getLogger().isEnabledFor(logging.DEBUG):
            self._emit(record)
        elif text := record.exc_text:
            if text in self._tracebacks:
                record.exc_text = None
            self._tracebacks.add(text)
            self._emit(record)
        else:
            if not self._errors:
                asyncio.get_running_loop().call_later(SHORTLY, self.release)
            self._errors.append(record)
