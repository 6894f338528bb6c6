"""Members of structural tags, read with the place in the error when they are wrong."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .lark import TagError

_STRINGS = 128
"""Triggers of one part, ends of one tag, or strings that a text must not have."""
_MOST = 10_000
"""Times that something may be repeated, or characters of a text."""


def known(value: Any, place: str, names: Sequence[str]) -> None:
    """An object with no other members. As all here it raises TagError."""
    if not isinstance(value, dict):
        raise TagError(place, "it must be an object")
    for name in value:
        if name not in names:
            raise TagError(f"{place}.{name}", f"it is not served; known are {', '.join(names)}")


def listed(value: Any, place: str) -> list[tuple[str, Any]]:
    """Each of a list, with its place."""
    if not isinstance(value, list) or not value:
        raise TagError(place, "it must be a list that is not empty")
    return [(f"{place}[{index}]", one) for index, one in enumerate(value)]


def elements(value: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
    """The member of that name."""
    return listed(value.get("elements"), f"{place}.elements")


def strings(value: Any, place: str) -> tuple[str, ...]:
    """A list of them, none empty."""
    if isinstance(value, list) and len(value) > _STRINGS:
        raise TagError(place, f"it has {len(value)} strings; it must have at most {_STRINGS}")
    return tuple(string(one, where) for where, one in listed(value, place))


def excludes(value: Mapping[str, Any], place: str) -> frozenset[str]:
    """The member of that name, which may be empty or left out."""
    given = value.get("excludes")
    return frozenset() if given in (None, []) else frozenset(strings(given, f"{place}.excludes"))


def string(value: Any, place: str, *, empty: bool = False) -> str:
    """A string, which may be empty or not."""
    if isinstance(value, dict) and value.get("type") == "token":
        raise TagError(place, "it must be a string: single tokens are not served")
    if not isinstance(value, str) or not (value or empty):
        raise TagError(place, "it must be a string" if empty else "it must be a string that is not empty")
    return value


def schema(value: Any, place: str) -> Mapping[str, Any]:
    """A JSON Schema as an object."""
    if value is True:
        return {}
    if not isinstance(value, dict):
        raise TagError(place, "it must be a JSON Schema, which is an object")
    return value


def encoded(value: Mapping[str, Any]) -> str:
    """A schema as text."""
    return json.dumps(value)


def flag(value: Mapping[str, Any], place: str, name: str, *, default: bool = False) -> bool:
    """The member of that name."""
    given = value.get(name, default)
    if not isinstance(given, bool):
        raise TagError(f"{place}.{name}", "it must be true or false")
    return given


def number(value: Mapping[str, Any], place: str, name: str, least: int = 0) -> int:
    """The member of that name."""
    given = value.get(name)
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= _MOST:
        raise TagError(f"{place}.{name}", f"it must be a number from {least} to {_MOST}")
    return given
