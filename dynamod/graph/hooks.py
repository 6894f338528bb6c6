"""Markers of a service's lifecycle methods; the host that runs the service looks them up with `hooks()`."""

from collections.abc import Callable
from dataclasses import dataclass
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


def _mark(function: F, moment: str) -> F:
    setattr(function, _MARK, (*getattr(function, _MARK, ()), moment))
    return function


def async_on_start(function: F) -> F:
    """Run after `__init__` and before the endpoints are served; awaited when it is async."""
    return _mark(function, "on_start")


def on_shutdown(function: F) -> F:
    """Run after the endpoints have drained; awaited when it is async."""
    return _mark(function, "on_shutdown")


def liveness(function: F) -> F:
    """Says whether the service still works; a false answer gets it restarted."""
    return _mark(function, "liveness")


def readiness(function: F) -> F:
    """Says whether the service can take requests now."""
    return _mark(function, "readiness")


def hooks(service: Any) -> Hooks:
    """Hooks of a service or class. An override counts under its own marks, and so leaves when it has none."""
    owner: type = service if isinstance(service, type) else service.inner
    found: dict[str, list[str]] = {"on_start": [], "on_shutdown": [], "liveness": [], "readiness": []}
    for name in dict.fromkeys(name for base in reversed(owner.__mro__) for name in vars(base)):
        for moment in getattr(getattr(owner, name, None), _MARK, ()):
            found[moment].append(name)
    return Hooks(**{moment: tuple(names) for moment, names in found.items()})
