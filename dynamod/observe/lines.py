"""Records as text: lines for people, JSON for machines, with fields. Formatting never raises.

Fields are what the caller gave as `extra`, and what is bound to the running task.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from .levels import level_name

MARK = "\x1e"
"""Begins a JSON line that a child writes for the daemon (ASCII record separator; no program prints it by accident)."""

LONGEST = 48_000
"""Bytes of a line for the daemon; longer ones lose text. asyncio readers refuse lines of 64 KiB."""

STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every LogRecord has; the rest of its __dict__ are fields."""

_bound: ContextVar[Mapping[str, Any]] = ContextVar("dynamod_log_fields")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_PLAIN = re.compile(r"[^\s\"'=\\,{}]+")
_SIMPLE = {str, int, bool, type(None)}
"""Types of which msgspec makes what json makes, except the spaces."""
_RESERVED = frozenset({"time", "level", "target", "message", "file", "line", "exception"})

_CODES = {"ERROR": 31, "WARN": 33, "INFO": 32, "DEBUG": 34, "TRACE": 35}
_DIM, _ITALIC, _RESET = "\x1b[2m", "\x1b[3m", "\x1b[0m"


class bound:  # it is called like a function
    """Put fields (`x_request_id=...`) on every record made inside the block. Tasks started in it inherit them."""

    __slots__ = ("_token", "_values")

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._token = _bound.set({**_bound.get({}), **self._values})

    def __exit__(self, *_: object) -> None:
        _bound.reset(self._token)


def bind(**values: Any) -> None:
    """The same for the rest of the running task."""
    _bound.set({**_bound.get({}), **values})


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """All fields of a record that is being handled, in the task that made it. `extra` wins over what is bound."""
    values = dict(_bound.get({}))
    structlog = sys.modules.get("structlog.contextvars")
    if structlog is not None:  # a component that uses structlog itself binds there
        values.update(structlog.get_contextvars())
    if not record.__dict__.keys() <= STANDARD:
        values.update((key, value) for key, value in record.__dict__.items() if key not in STANDARD)
    return values


def clean(text: str) -> str:
    """Without terminal escapes, control characters (but tab and newline) and lone surrogates."""
    if text.isprintable():
        return text
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _UNPRINTABLE.sub("", text)


def message_of(record: logging.LogRecord) -> str:
    """The message; when its arguments do not fit, both as they are."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args!r}"


class Lines(logging.Formatter):
    """Time, fields and exceptions, which both forms need. `component` names the process in every line."""

    def __init__(self, *, component: str = "", local: bool = False) -> None:
        super().__init__()
        self._component = component
        self._local = local
        self._second = (-1, "", "")

    def when(self, record: logging.LogRecord) -> str:
        """RFC 3339 with microseconds: UTC with Z, or local with its offset."""
        second, micros = divmod(round(record.created * 1e6), 1_000_000)
        known, text, zone = self._second
        if second != known:
            moment = time.localtime(second) if self._local else time.gmtime(second)
            text = time.strftime("%Y-%m-%dT%H:%M:%S.", moment)
            offset = time.strftime("%z", moment)
            zone = f"{offset[:3]}:{offset[3:]}" if self._local else "Z"
            self._second = (second, text, zone)
        return f"{text}{micros:06d}{zone}"

    def values(self, record: logging.LogRecord) -> dict[str, Any]:
        """The record's fields, with the component's name unless it has one."""
        values = fields(record)
        if self._component:
            values.setdefault("component", self._component)
        return values

    def trouble(self, record: logging.LogRecord) -> str:
        """Traceback and stack of the record, or nothing."""
        try:
            text = record.exc_text or ""
            if not text and record.exc_info and record.exc_info[1] is not None:
                text = self.formatException(record.exc_info)
            if record.stack_info:
                text = f"{text}\n{record.stack_info}".strip("\n")
        except Exception as error:  # an exception whose __str__ raises
            text = f"(traceback cannot be shown: {type(error).__name__})"
        return text


class HumanLines(Lines):
    """`2025-03-17T14:03:14.122652Z  INFO target: message key=value`.

    Further lines of a message or traceback are indented, so what begins in the first column is a record and nothing
    that a client sends can look like one.
    """

    def __init__(self, *, component: str = "", local: bool = False, color: bool = False) -> None:
        super().__init__(component=component, local=local)
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and more lines for a traceback."""
        level = level_name(record.levelno)
        when, target, message = self.when(record), clean(record.name), clean(message_of(record))
        dim, italic, reset, color = (_DIM, _ITALIC, _RESET, f"\x1b[{_CODES[level]}m") if self._color else ("",) * 4
        head = f"{dim}{when}{reset} {color}{level:>5}{reset} {dim}{target}:{reset} "
        pairs = [f"{italic}{clean(k)}{reset}{dim}={reset}{_show(v)}" for k, v in self.values(record).items()]
        first, newline, rest = message.partition("\n")
        text = head + " ".join([first, *pairs]) + newline + rest
        trouble = self.trouble(record)
        if trouble:
            text = f"{text}\n{clean(trouble)}"
        return text.rstrip("\n").replace("\n", "\n  ") if "\n" in text else text


class JsonLines(Lines):
    """One JSON object per line; fields stand next to time, level, target, message, file and line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        return self._encode(self.facts(record))

    def facts(self, record: logging.LogRecord) -> dict[str, Any]:
        """The content of the line."""
        facts: dict[str, Any] = {
            "time": self.when(record),
            "level": level_name(record.levelno),
            "target": record.name,
            "message": message_of(record),
            "file": record.pathname,
            "line": record.lineno,
        }
        for key, value in self.values(record).items():
            facts[f"{key}_" if key in _RESERVED else key] = value
        trouble = self.trouble(record)
        if trouble:
            facts["exception"] = trouble
        return facts

    def _encode(self, facts: dict[str, Any]) -> str:
        try:
            text = json.dumps(facts, ensure_ascii=False, allow_nan=False, default=_text)
        except Exception:  # keys that are no strings, circles, numbers that JSON lacks
            plain = {k: v if isinstance(v, str | int) else _text(v) for k, v in facts.items()}
            text = json.dumps(plain, ensure_ascii=False)
        return _UNPRINTABLE.sub(_escaped, text)


class MarkedLines(JsonLines):
    """JSON lines for the daemon, which `capture.LineReader` knows by their mark. Not longer than a reader takes."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one marked line."""
        facts = self.facts(record)
        text = self._encode(facts)
        if len(text) > LONGEST // 6 and len(text.encode()) > LONGEST:
            kept = {key: facts[key] for key in ("time", "level", "target", "file", "line")}
            kept["message"] = str(facts["message"])[:3000] + " (cut)"
            if "x_request_id" in facts:
                kept["x_request_id"] = _text(facts["x_request_id"])[:200]
            if "exception" in facts:
                kept["exception"] = "(cut) " + facts["exception"][-3000:]
            text = self._encode(kept)
        return MARK + text

    def _encode(self, facts: dict[str, Any]) -> str:
        msgspec: Any = sys.modules.get("msgspec")  # a command that needs none must not import msgspec for its log
        if msgspec is not None and not {*map(type, facts.values())} - _SIMPLE:
            try:
                return _UNPRINTABLE.sub(_escaped, msgspec.json.encode(facts).decode())
            except UnicodeEncodeError:  # lone surrogates
                pass
        return super()._encode(facts)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return "\ufffd" if 0xD800 <= number < 0xE000 else f"\\u{number:04x}"


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _show(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    text = clean(_text(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
