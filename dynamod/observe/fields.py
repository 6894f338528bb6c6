"""The fields of a log record: what the caller gave as `extra`, and what is bound to the running task."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_NOTHING: Mapping[str, Any] = {}
_bound: ContextVar[Mapping[str, Any]] = ContextVar("dynamod_log_fields", default=_NOTHING)

STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every LogRecord has; the rest of its __dict__ are fields."""


@contextmanager
def bound(**values: Any) -> Iterator[None]:
    """Put fields (`x_request_id=...`) on every record made inside the block. Tasks started in it inherit them."""
    token = _bound.set({**_bound.get(), **values})
    try:
        yield
    finally:
        _bound.reset(token)


def bind(**values: Any) -> None:
    """The same for the rest of the running task."""
    _bound.set({**_bound.get(), **values})


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """All fields of a record that is being handled, in the task that made it. `extra` wins over what is bound."""
    values = dict(_bound.get())
    structlog = sys.modules.get("structlog.contextvars")
    if structlog is not None:  # a component that uses structlog itself binds there
        values.update(structlog.get_contextvars())
    values.update((key, value) for key, value in record.__dict__.items() if key not in STANDARD)
    return values
