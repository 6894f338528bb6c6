"""JSON Schemas as parts of others."""

from typing import Any

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Of a function without `parameters`: by OpenAI's reference its list of parameters is empty."""


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
