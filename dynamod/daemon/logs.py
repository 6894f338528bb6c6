"""Log lines of the daemon and of its processes: to files, to followers, to the terminals of sessions."""

import logging
from collections.abc import Callable

from dynamod.observe.capture import LineReader
from dynamod.observe.logstore import LogStore

from .recent import Recent, SessionLogs


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
