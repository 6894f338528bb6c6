"""JSON Schemas as parts of others."""

from collections.abc import Mapping
from typing import Any

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def parameters_of(function: Mapping[str, Any]) -> Any:
    """The schema of a function's parameters. Without `parameters` a function has none, by OpenAI's reference."""
    given = function.get("parameters")
    return NO_PARAMETERS if given is None else given


def moved(schema: Any, place: str) -> Any:
    """A schema that is at another place now: what it says of itself begins there."""
    if isinstance(schema, list):
        return [moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: moved(value, place) for name, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found
