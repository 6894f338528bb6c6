"""Fields that would change the answer and are not served: left out of a request where the operator wants that."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)
Unserved = Iterator[tuple[str, str]]
"""Paths of fields, like `nvext.guided_json`, each with the reason."""


def left_out(request: R, find: Callable[[R], Unserved]) -> tuple[R, list[str]]:
    """The request without the fields that `find` finds, as if they had not been sent, and the paths of those."""
    paths: list[str] = []
    while (found := next(find(request), None)) is not None:
        path = found[0]
        paths.append(path)
        request = _without(request, path.split("."))
    return request, paths


def _without(value: R, steps: Sequence[str]) -> R:
    name, *rest = steps
    inner = _without(getattr(value, name), rest) if rest else None
    return msgspec.structs.replace(value, **{name: inner})


def body_without(body: bytes, paths: Sequence[str]) -> bytes:
    """A body, which is a JSON object, without these fields: text engines read it themselves."""
    value = msgspec.json.decode(body)
    for path in paths:
        *outer, name = path.split(".")
        holder: dict[str, Any] = value
        for step in outer:
            holder = holder[step]
        holder.pop(name, None)
    return msgspec.json.encode(value)
