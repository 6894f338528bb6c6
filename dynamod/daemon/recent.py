"""Log handlers of the daemon: numbered recent lines for followers, and lines for the terminals of sessions."""

import logging
from collections import deque
from collections.abc import Callable

from dynamod.observe.bounded import bounded
from dynamod.observe.lines import HumanLines, MarkedLines
from dynamod.observe.logstore import LogStore

KEPT = 10_000


class Recent(logging.Handler):
    """Writes each record of this process to the log store and keeps the last lines in memory with a running number."""

    def __init__(self, log_store: LogStore) -> None:
        super().__init__()
        self.setFormatter(HumanLines())
        self._log_store = log_store
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=KEPT)
        self.number = 0
        bounded(self, "recent log lines", KEPT, lambda one: len(one._lines), "lines")

    def emit(self, record: logging.LogRecord) -> None:
        """Number the line, keep it and write it."""
        component = str(getattr(record, "component", "") or "dynamod")
        line = self.format(record)
        self.number += 1
        self._lines.append((self.number, component, line))
        self._log_store.write(component, line)

    def after(self, number: int, components: set[str] | None) -> list[str]:
        """Lines with higher numbers, of some components or of all."""
        return [
            line for n, component, line in self._lines if n > number and (components is None or component in components)
        ]


class SessionLogs(logging.Handler):
    """Hands the daemon's own records to `send(graph, line)`; an empty graph: they concern every session."""

    def __init__(self, send: Callable[[str, str], None]) -> None:
        super().__init__()
        self.setFormatter(MarkedLines(component="dynamod"))
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on what the daemon logs itself: lines of component processes go to their session as they come."""
        if not getattr(record, "component", ""):
            self._send(str(getattr(record, "graph", "")), self.format(record))
