"""Settings given on the command line: `--Service.key=value`, `--Service.key value`, `--Service.a.b=value`.

Values are read as JSON, then integer, float, boolean, text. `ServiceArgs.envs.*` stays text. A value that starts with
`-` is refused, because it is nearly always a forgotten value followed by the next option; numbers such as `-1` are not.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dynamod.message.errors import UserError

_FORM = "write --Service.key=value"


def parse_overrides(args: Sequence[str]) -> dict[str, Any]:
    """Nested mapping of all overrides, later ones over earlier ones. Raises UserError naming the argument."""
    result: dict[str, Any] = {}
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        name, equals, text = argument.partition("=")
        path = name[2:].split(".")
        if not name.startswith("--") or len(path) < 2 or not all(path):
            raise UserError(f"unknown argument '{argument}'", _FORM)
        if not equals:
            if not rest:
                raise UserError(f"'{argument}' has no value", _FORM)
            text = rest.pop(0)
        value = parse_value(text)
        if text.startswith("-") and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UserError(f"'{name}' has no value: '{text}' looks like an option", _FORM)
        if path[1:3] == ["ServiceArgs", "envs"] and len(path) > 3:
            value = text  # the environment knows nothing but text
        inner = result
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise UserError(f"'{argument}' contradicts an earlier value of '{key}'")
        inner[path[-1]] = value
    return result


def parse_value(text: str) -> Any:
    """One value: JSON, else integer, float, boolean, else the text itself. NaN and infinities stay text (not JSON)."""
    try:
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        pass
    if "_" not in text:  # Python reads 1_000 as a number; a model name does not mean that
        for number in (int, float):
            try:
                value = number(text)
            except ValueError:
                continue
            if math.isfinite(value):
                return value
    return {"true": True, "false": False}.get(text.lower(), text)


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on top: mappings are merged, everything else is replaced. Neither is changed."""
    merged: dict[str, Any] = copy.deepcopy(dict(base))
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = deep_merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def _not_json(_: str) -> NoReturn:
    raise ValueError
