"""Markers of a service's lifecycle methods; the host that runs the service looks them up with `hooks()`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__dynamo_hooks__"


@dataclass(frozen=True)
class Hooks:
    """Method names per moment, those of base classes first."""

    on_start: tuple[str, ...] = ()
    on_shutdown: tuple[str, ...] = ()
    liveness: tuple[str, ...] = ()
    readiness: tuple[str, ...] = ()


def _marker(moment: str, meaning: str) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, _MARK, (*getattr(function, _MARK, ()), moment))
        return function

    mark.__doc__ = meaning
    return mark


async_on_start = _marker("on_start", "Run after `__init__`, before the endpoints are served; awaited when async.")
on_shutdown = _marker("on_shutdown", "Run after the endpoints have drained; awaited when it is async.")
liveness = _marker("liveness", "Says whether the service still works; a false answer gets it restarted.")
readiness = _marker("readiness", "Says whether the service can take requests now.")


def hooks(service: Any) -> Hooks:
    """Hooks of a service or class. An override counts under its own marks, and so leaves when it has none."""
    owner: type = service if isinstance(service, type) else service.inner
    names = dict.fromkeys(name for base in reversed(owner.__mro__) for name in vars(base))
    marks = {name: getattr(getattr(owner, name, None), _MARK, ()) for name in names}
    moments = [field.name for field in fields(Hooks)]
    return Hooks(*(tuple(name for name in names if moment in marks[name]) for moment in moments))
