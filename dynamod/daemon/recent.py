"""Log lines with numbers, so that a follower can ask for what came after the last one it saw."""

import logging
from collections import deque

from dynamod.observe.lines import HumanLines
from dynamod.observe.logstore import LogStore

KEPT = 10_000


class Recent(logging.Handler):
    """Writes each record of this process to the book and keeps the last lines in memory with a running number."""

    def __init__(self, log_store: LogStore, own: str = "dynamod") -> None:
        super().__init__()
        self.setFormatter(HumanLines())
        self._log_store, self._own = log_store, own
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=KEPT)
        self.number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        component = str(getattr(record, "component", "") or self._own)
        line = self.format(record)
        self.number += 1
        self._lines.append((self.number, component, line))
        self._log_store.write(component, line)

    def after(self, number: int, components: set[str] | None) -> list[str]:
        """Lines with higher numbers, of some components or of all."""
        return [
            line for n, component, line in self._lines if n > number and (components is None or component in components)
        ]
