"""Bounds of numbers: by JSON Schema alone a number may have any length, and a small model writes digits forever."""

from collections.abc import Mapping
from typing import Any, Final

from .place import parts

LARGEST: Final = 10**18
"""Integers that name no bound are between this and its negative."""
SMALLEST: Final = 1e-9
"""Numbers that name no step have this one, where `steps` asks for it."""


def bound(schema: Any, *, steps: bool = False) -> None:
    """Integers and numbers have a smallest and a largest value from now on. The schema is changed in place.

    `steps`: numbers have nine decimals at most, and no exponent. A schema that says so itself stays as it is.
    """
    if not isinstance(schema, dict):
        return
    for _, part in parts(schema):
        bound(part, steps=steps)
    kinds = schema.get("type")
    named = set(filter(_is_name, kinds)) if isinstance(kinds, list) else {kinds} if _is_name(kinds) else set()
    if not named & {"integer", "number"} or "enum" in schema or "const" in schema:
        return
    if _is_free(schema, "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        schema.setdefault("minimum", -LARGEST)
        schema.setdefault("maximum", LARGEST)
    elif _is_free(schema, "maximum", "exclusiveMaximum"):
        if _least(schema) < LARGEST:
            schema["maximum"] = LARGEST
    elif _is_free(schema, "minimum", "exclusiveMinimum") and _most(schema) > -LARGEST:
        schema["minimum"] = -LARGEST
    if steps and "number" in named and "multipleOf" not in schema and not _fine(schema):
        schema["multipleOf"] = SMALLEST


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_free(schema: Mapping[str, Any], *names: str) -> bool:
    return not any(name in schema for name in names)


def _numbers(schema: Mapping[str, Any], *names: str) -> list[float]:
    found = [schema.get(name) for name in names]
    return [one for one in found if isinstance(one, (int, float)) and not isinstance(one, bool)]


def _least(schema: Mapping[str, Any]) -> float:
    return max(_numbers(schema, "minimum", "exclusiveMinimum"), default=-LARGEST)


def _most(schema: Mapping[str, Any]) -> float:
    return min(_numbers(schema, "maximum", "exclusiveMaximum"), default=LARGEST)


def _fine(schema: Mapping[str, Any]) -> bool:
    """Whether its own bounds are finer than the step."""
    own = _numbers(schema, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    return any(one and abs(one) < 1e-6 for one in own)
