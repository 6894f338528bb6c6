"""Where in a JSON Schema the part is that cannot be compiled: the compiler's errors name what it is, not where."""

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

_SECONDS = 0.5
"""CPU time for the search."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "additionalItems", "if", "then", "else", "not", "contains", "propertyNames")
SHARED = ("$defs", "definitions")
"""Members of a schema to which its parts refer."""


def place(schema: dict[str, Any], error: str, problem: Callable[[dict[str, Any]], str]) -> str:
    """The innermost part that is refused for the same reason, as a path like `.properties.a.items`; empty: the whole.

    `problem(schema)`: why a schema is refused, empty when it is not.
    """
    shared = {name: schema[name] for name in SHARED if name in schema}
    found, here, until = "", schema, process_time() + _SECONDS
    while True:
        for path, part in parts(here):
            if process_time() > until:
                return found
            if isinstance(part, dict) and problem({**shared, **part}) == error:
                found, here = found + path, part
                break
        else:
            return found


def parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a schema consists of, with its path from there."""
    for name in _MAPS:
        if isinstance(inner := schema.get(name), dict):
            yield from ((f".{name}.{key}", part) for key, part in inner.items())
    for name in (*_LISTS, "items"):
        if isinstance(inner := schema.get(name), list):
            yield from ((f".{name}[{index}]", part) for index, part in enumerate(inner))
    for name in _ONE:
        if name in schema:
            yield f".{name}", schema[name]
