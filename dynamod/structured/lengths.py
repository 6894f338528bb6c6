"""Bounds of numbers: by JSON Schema alone a number may have any length, and a small model writes digits forever."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeGuard

from .place import parts

LARGEST: Final = 10**18
"""Integers that name no bound are between this and its negative."""
SMALLEST: Final = 1e-9
"""Numbers that name no step have this one, where `steps` asks for it."""


MOST_BOUND: Final = 256
"""Numbers of a schema that get bounds. Each bound is a lexeme of its own, and llguidance has room for some hundreds."""


def bound(schema: Any, *, steps: bool = False) -> None:
    """Integers and numbers have a smallest and a largest value from now on. The schema is changed in place.

    `steps`: numbers have nine decimals at most, and no exponent. A schema that says so itself stays as it is, and so
    does a schema with more than MOST_BOUND numbers.
    """
    found = [*islice(_of_numbers(schema), MOST_BOUND + 1)]
    if len(found) > MOST_BOUND:
        return
    for part, names in found:
        _bound(part, steps and "number" in names)


def _of_numbers(schema: Any) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """The parts of a schema that are integers or numbers, with the names of their types."""
    if not isinstance(schema, dict):
        return
    for _, part in parts(schema):
        yield from _of_numbers(part)
    kinds = schema.get("type")
    names = set(filter(_is_name, kinds)) if isinstance(kinds, list) else {kinds} if _is_name(kinds) else set()
    if names & {"integer", "number"} and "enum" not in schema and "const" not in schema:
        yield schema, names


def _bound(schema: dict[str, Any], steps: bool) -> None:
    if _is_free(schema, "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        schema.setdefault("minimum", -LARGEST)
        schema.setdefault("maximum", LARGEST)
    elif _is_free(schema, "maximum", "exclusiveMaximum"):
        if _least(schema) < LARGEST:
            schema["maximum"] = LARGEST
    elif _is_free(schema, "minimum", "exclusiveMinimum") and _most(schema) > -LARGEST:
        schema["minimum"] = -LARGEST
    if steps and "multipleOf" not in schema and not _fine(schema):
        schema["multipleOf"] = SMALLEST


def _is_name(value: Any) -> TypeGuard[str]:
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
