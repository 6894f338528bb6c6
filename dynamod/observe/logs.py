"""Logging of a process: code logs to `logging.getLogger("dynamod.x")`, `configure` decides what is shown and how.

The formatting is our own: any import of structlog runs its `__init__`, which costs a process 40 to 180 ms; see
README.md for the numbers. Components that use structlog themselves get its lines through here, by `adopt_structlog`.

Environment: DYN_LOG, DYN_LOGGING_CONFIG_PATH, DYN_LOGGING_JSONL, DYN_LOG_USE_LOCAL_TZ,
DYN_SDK_DISABLE_ANSI_LOGGING, NO_COLOR; DYNAMOD_LOG_PIPE is set by the daemon for its children.
"""

import logging
import os
import select
import stat
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NoReturn, TextIO

from dynamod.message.errors import UserError

from .backlog import FLUSH, Backlog
from .frequent import Holding, write_waiting
from .levels import TRACE, Filter, apply, parse, parse_level
from .lines import HumanLines, JsonLines, Lines, MarkedLines, bind, bound

__all__ = ["PIPE", "TRACE", "Console", "adopt_structlog", "bind", "bound", "configure", "leave"]

PIPE = "DYNAMOD_LOG_PIPE"
"""When "1" in the environment, standard error is read by the daemon's `capture.LineReader`."""


_PIECE = select.PIPE_BUF
"""Characters that are written with one call, unless a line is longer."""


class Console(logging.Handler, Holding):
    """Writes records to a stream; without one to whatever sys.stderr is. A reader that is gone is no error.

    A reader that stops reading stops no process: what the stream does not take now waits in a backlog.
    """

    def __init__(self, formatter: Lines, stream: TextIO | None = None) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream
        self._backlog = Backlog(self._write_late)
        self._held: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record with one call, so that lines of several writers stay whole."""
        text = self.format(record) + "\n"
        if self._held is None:
            self._write([text])
        else:
            self._held.append(text)

    def hold(self) -> None:
        """Keep lines until `write_held`."""
        with self.lock or nullcontext():
            self._held = []

    def write_held(self) -> None:
        """Write the lines since `hold` together."""
        with self.lock or nullcontext():
            held, self._held = self._held, None
            self._write(held or [])

    def flush(self) -> None:
        """Wait a moment for what the thread has not written yet; at the end of the process."""
        write_waiting()
        self._backlog.flush(FLUSH)

    def _write(self, lines: list[str]) -> None:
        """Write lines, as many with one call as a pipe takes in one piece."""
        stream = self._stream if self._stream is not None else sys.stderr
        first = 0
        while stream is not None and first < len(lines):
            size, end = len(lines[first]), first + 1
            while end < len(lines) and size + len(lines[end]) <= _PIECE:
                size, end = size + len(lines[end]), end + 1
            text, first = "".join(lines[first:end]), end
            if self._backlog.idle and _takes(stream, text):
                _write(stream, text)
            else:
                self._backlog.put(stream, text)

    def _write_late(self, stream: TextIO, text: str, dropped: int) -> None:
        if dropped:
            note = f"{dropped} log lines were dropped because the output was not read"
            text += self.format(logging.LogRecord("dynamod.observe", logging.WARNING, "", 0, note, None, None)) + "\n"
        _write(stream, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass


def _takes(stream: TextIO, text: str) -> bool:
    """Whether a write returns at once. A pipe that can be written has room for PIPE_BUF bytes at least."""
    try:
        fd = stream.fileno()
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return True
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        return bool(poll.poll(0)) and len(text.encode(errors="replace")) <= select.PIPE_BUF
    except (OSError, ValueError):  # no file at all, or one that is closed
        return True


def leave(code: int) -> NoReturn:
    """End the process at once, except the log lines that wait to be written."""
    logging.shutdown()
    os._exit(code)


def configure(
    *,
    component: str = "",
    stream: TextIO | None = None,
    level: str = "",
    environ: Mapping[str, str] = os.environ,
    console: bool = True,
) -> None:
    """Send the records of this process to `stream` (standard error); calling it again replaces what it did before.

    `console`: False for a process without a terminal or file, whose records go elsewhere.
    `level` (of -v and -vv) is the level of everything, before DYN_LOG's and the file's; their targets stay. Raises
    UserError for a setting that cannot be read.
    """
    chosen = chosen_levels(environ, level)
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, Console) or _is_basic(handler):
            root.removeHandler(handler)
    if console:
        # None is sys.stderr of the moment: a prompt replaces it while it waits.
        root.addHandler(Console(_lines(component, stream, environ), None if stream is sys.stderr else stream))
    apply(chosen)
    logging.captureWarnings(True)
    adopt_structlog()


def adopt_structlog() -> None:
    """If structlog has been imported and not configured, send its lines through logging."""
    structlog: Any = sys.modules.get("structlog")
    if structlog is None or not hasattr(structlog, "is_configured") or structlog.is_configured():
        return
    std = structlog.stdlib
    structlog.configure(
        processors=[std.filter_by_level, std.PositionalArgumentsFormatter(), std.render_to_log_kwargs],
        logger_factory=std.LoggerFactory(),
        wrapper_class=std.BoundLogger,
        cache_logger_on_first_use=True,
    )


def chosen_levels(environ: Mapping[str, str], level: str = "") -> Filter:
    """What the variables and `level` (of -v and -vv) choose. Raises UserError for a setting that cannot be read."""
    path = environ.get("DYN_LOGGING_CONFIG_PATH", "")
    chosen = parse(environ.get("DYN_LOG", ""), "DYN_LOG", _from_file(path) if path else Filter())
    if level:
        chosen = Filter(parse_level(level, "log level"), chosen.targets)
    return chosen


def _from_file(path: str) -> Filter:
    """`log_level = "info"` and a table `[log_filters]` of targets with their levels."""
    import tomllib

    source = f"DYN_LOGGING_CONFIG_PATH={path}"
    try:
        with open(path, "rb") as file:
            settings = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{source}: {error}", "name a TOML file with log_level and [log_filters]") from None
    default, targets = settings.get("log_level", "info"), settings.get("log_filters", {})
    if not isinstance(default, str) or not isinstance(targets, dict):
        raise UserError(f"{source}: log_level must be a string and log_filters a table")
    chosen = Filter(parse_level(default, f"{source}: log_level"))
    for target, word in targets.items():
        chosen = parse(f"{target}={word}", f"{source}: log_filters", chosen)
    return chosen


def _lines(component: str, stream: TextIO | None, environ: Mapping[str, str]) -> Lines:
    if environ.get(PIPE) == "1" and stream is None:
        return MarkedLines(component=component)
    local = _truth(environ, "DYN_LOG_USE_LOCAL_TZ")
    if _truth(environ, "DYN_LOGGING_JSONL"):
        return JsonLines(component=component, local=local)
    return HumanLines(component=component, local=local, color=_colored(stream, environ))


def _colored(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    if environ.get("NO_COLOR") or _truth(environ, "DYN_SDK_DISABLE_ANSI_LOGGING") or environ.get("TERM") == "dumb":
        return False
    stream = stream if stream is not None else sys.stderr
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _truth(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def _is_basic(handler: logging.Handler) -> bool:
    """What logging.basicConfig of some library installed: it would print everything twice."""
    return type(handler) is logging.StreamHandler and handler.stream in (sys.stderr, sys.stdout)
