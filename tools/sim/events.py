"""What happened in a simulation: lines with virtual times, their digest, and what should not have happened."""

import hashlib
import logging
from collections import deque
from collections.abc import Callable

KEPT = 20_000
"""Lines that a log keeps; the digest covers all of them."""


FAULTS = ("killed", "does not start, which is a fault")
"""What an error of the real code says that a fault has brought about."""


class Log:
    """One line per event. `violate` notes a broken invariant; runs with any have failed."""

    def __init__(self, now: Callable[[], float], kept: int = KEPT) -> None:
        self._now = now
        self._zero = now()
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=kept)
        self.count = 0
        self.violations: list[tuple[str, str]] = []

    def __call__(self, kind: str, text: str) -> None:
        """Add an event."""
        line = f"{self._now() - self._zero:10.6f} {kind:<10} {text}"
        self.lines.append(line)
        self.count += 1
        self._digest.update(line.encode("utf-8", "replace") + b"\n")

    def violate(self, check: str, text: str) -> None:
        """An invariant does not hold. `check` names it."""
        self.violations.append((check, text))
        self("VIOLATED", f"{check}: {text}")

    @property
    def digest(self) -> str:
        """Of all lines so far: equal seeds must give equal ones."""
        return self._digest.hexdigest()


class LogEvents(logging.Handler):
    """Warnings of the real code become events, its errors violations: an error is logged where we have a bug."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record."""
        if record.name == "dynamod.registry":
            return  # what it ignores it says once per process, which runs many simulations
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f" [{type(error).__name__}: {error}]"
        given_up = "is Fatal" in text or "could not be loaded" in text  # crashed too often
        excused = given_up and any(one in text for one in FAULTS)
        if record.levelno >= logging.ERROR and not excused:
            self._log.violate("no internal errors", f"{record.name}: {text}")
        else:
            self._log("log", f"{record.name}: {text}")


class LogCapture:
    """`with LogCapture(log):` dynamod's loggers write to the event log and nowhere else."""

    def __init__(self, log: Log) -> None:
        self._handler = LogEvents(log)
        self._logger = logging.getLogger("dynamod")

    def __enter__(self) -> None:
        logger = self._logger
        self._before = logger.handlers, logger.propagate, logger.level
        logger.handlers, logger.propagate = [self._handler], False
        logger.setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        self._logger.handlers, self._logger.propagate = self._before[0], self._before[1]
        self._logger.setLevel(self._before[2])
