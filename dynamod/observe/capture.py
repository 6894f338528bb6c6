"""What a child process prints, turned back into log records in the daemon."""

import json
import logging
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .levels import LEVELS
from .lines import MARK, STANDARD, clean

Emit = Callable[[logging.LogRecord], None]

LONGEST = 16_384
"""Bytes of a printed line that are kept."""

_KNOWN = STANDARD | {"time", "target", "message", "level", "file", "line", "exception"}
_MARK = (MARK + "{").encode()
_LEVEL = re.compile(
    r"\b(?:(?P<error>ERROR|FATAL|CRITICAL|panicked|Fatal Python error|Segmentation fault)"
    r"|(?P<warn>WARN|\w*Warning:|WARNING)|(?P<info>INFO)|(?P<debug>DEBUG))(?!\w)"
)
_TRACEBACK = "Traceback (most recent call last)"
_BETWEEN = ("During handling of", "The above exception", _TRACEBACK)


def reemit(record: logging.LogRecord) -> None:
    """Hand a record to this process's handlers. The child has filtered it already: levels have no effect here."""
    logging.getLogger().handle(record)


class LineReader:
    """Lines of one process. Marked lines are records of its own logging, others were printed by other code."""

    def __init__(self, component: str, emit: Emit = reemit) -> None:
        self.component = component
        self._emit = emit
        self._in_traceback = False

    def feed(self, stream: str, line: bytes) -> None:
        """One line of "out" or "err"; the newline may be there or not. Never raises, whatever the line holds."""
        before, mark, after = line.partition(_MARK)
        if mark:
            record = self._marked(b"{" + after)
            if record is not None:
                self._printed(stream, before)  # a print without a newline, then a record
                self._emit(record)
                return
        self._printed(stream, line)

    def _marked(self, text: bytes) -> logging.LogRecord | None:
        try:
            facts: dict[str, Any] = json.loads(text)
            record = self._record(
                LEVELS[facts["level"].lower()],
                datetime.fromisoformat(facts["time"]).timestamp(),
                name=str(facts["target"]),
                msg=str(facts["message"]),
                pathname=str(facts["file"]),
                lineno=int(facts["line"]),
                exc_text=facts.get("exception"),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
        record.__dict__.update((key, value) for key, value in facts.items() if key not in _KNOWN)
        return record

    def _record(self, level: int, created: float, **values: Any) -> logging.LogRecord:
        values |= {"levelno": level, "levelname": logging.getLevelName(level), "component": self.component}
        return logging.makeLogRecord({**values, "created": created, "msecs": created % 1 * 1000})

    def _printed(self, stream: str, line: bytes) -> None:
        cut = len(line) > LONGEST
        text = line[:LONGEST].decode("utf-8", "replace").rstrip("\r\n")
        text = clean(text.rpartition("\r")[2]).rstrip()  # of a progress bar, what is seen last
        if not text:
            return
        level = self._level(text) if stream == "err" else logging.INFO
        self._emit(self._record(level, time.time(), name=self.component, msg=f"{text} (cut)" if cut else text))

    def _level(self, text: str) -> int:
        """By the first level word near the line's begin; all lines of a traceback are errors."""
        if text.startswith(_BETWEEN):
            self._in_traceback = True
            return logging.ERROR
        if self._in_traceback:
            self._in_traceback = text[0].isspace()
            return logging.ERROR
        found = _LEVEL.search(text, 0, 200)
        return LEVELS[found.lastgroup] if found is not None and found.lastgroup else logging.INFO
