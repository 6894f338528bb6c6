"""Fields that would change the answer and are not served: left out of a request where the operator wants that."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)
Unserved = Iterator[tuple[str, str]]
"""Paths of fields, like `nvext.guided_json` or `include[0]`, each with the reason."""


def left_out(request: R, find: Callable[[R], Unserved]) -> tuple[R, list[str]]:
    """The request without the fields that `find` finds, as if they had not been sent, and the paths of those."""
    paths: list[str] = []
    while (found := next(find(request), None)) is not None:
        path = found[0]
        paths.append(path)
        request = _without(request, path.split("."))
    return request, paths


def _without(value: R, steps: Sequence[str]) -> R:
    name, place = _step(steps[0])
    inner: Any = None
    if place is not None:
        inner = _others(getattr(value, name), place)
    elif steps[1:]:
        inner = _without(getattr(value, name), steps[1:])
    return msgspec.structs.replace(value, **{name: inner})


def _step(step: str) -> tuple[str, int | None]:
    """The field's name, and which of its items."""
    name, found, place = step.removesuffix("]").partition("[")
    return name, int(place) if found else None


def _others(items: Sequence[Any], place: int) -> list[Any]:
    """Without the item at this place, and without all that are like it: there may be very many."""
    return [one for one in items if one != items[place]]


def field_of(path: str) -> str:
    """The path without places in lists: what metrics call it."""
    return ".".join(_step(step)[0] for step in path.split("."))


def body_without(body: bytes, paths: Sequence[str]) -> bytes:
    """A body, which is a JSON object, without these fields: text engines read it themselves."""
    value = msgspec.json.decode(body)
    for path in paths:
        *outer, last = path.split(".")
        holder: dict[str, Any] = value
        for step in outer:
            holder = holder[step]
        name, place = _step(last)
        if place is None:
            holder.pop(name, None)
        else:
            holder[name] = _others(holder[name], place)
    return msgspec.json.encode(value)
