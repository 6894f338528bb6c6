"""Log lines of the daemon and of its processes: to files, to followers, to the terminals of sessions."""

import logging
from collections import deque
from collections.abc import Callable

from dynamod.observe.bounded import bounded
from dynamod.observe.capture import LineReader
from dynamod.observe.lines import HumanLines, MarkedLines
from dynamod.observe.logstore import LogStore

RECENT_LINES = 10_000


class Recent(logging.Handler):
    """Writes each record of this process to the log store and keeps the last lines in memory with a running number."""

    def __init__(self, log_store: LogStore) -> None:
        super().__init__()
        self.setFormatter(HumanLines())
        self._log_store = log_store
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=RECENT_LINES)
        self.number = 0
        bounded(self, "recent log lines", RECENT_LINES, lambda one: len(one._lines), "lines")

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


class NodeLogs:
    """`store`: the files. `recent`: the last lines, numbered. `to_sessions(graph, process, stream, line)`: passes a
    line on to the terminals of sessions; with an empty graph to all.
    """

    def __init__(self, store: LogStore, to_sessions: Callable[[str, str, str, bytes], None]) -> None:
        self.store, self.recent = store, Recent(store)
        self._to_sessions = to_sessions
        self._handlers = [
            self.recent,
            SessionLogs(lambda graph, line: to_sessions(graph, "dynamod", "err", line.encode())),
        ]
        self._readers: dict[str, LineReader] = {}

    def begin(self) -> None:
        """Take the records of this process from now on."""
        for handler in self._handlers:
            logging.getLogger().addHandler(handler)

    def output(self, process: str, stream: str, line: bytes) -> None:
        """Take a line of a component process, `stream` "out" or "err": for its log, and the session of its graph."""
        reader = self._readers.get(process)
        if reader is None:
            reader = self._readers[process] = LineReader(process)
        reader.feed("out" if stream == "out" else "err", line)
        self._to_sessions(process.partition("/")[0], process, stream, line)

    def close(self) -> None:
        """Take no more records, and close the files."""
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
        self.store.close()
