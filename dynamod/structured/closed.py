"""Schemas without properties that have no name in them.

By JSON Schema an object may have any other property, and a model that is held to such a schema makes some up: functions
are called with arguments that they do not take, and small models never end. Other servers allow none either.
"""

from typing import Any

from .place import parts

_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties")
"""Members that say which other properties there may be."""
_ELSEWHERE = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef")
"""Members that may name more properties of an object that names some itself."""
_CONDITIONS = ("if", "dependentSchemas", "dependentRequired", "dependencies")


def close(schema: Any) -> None:
    """Objects that name properties have no others from now on. The schema is changed in place.

    What says itself which others there may be, or needs others, stays as it is. So does a schema that anywhere puts an
    object together of several: none of its parts names all properties.
    """
    if not _composed(schema):
        _close(schema)


def _composed(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    named = "properties" in schema and any(name in schema for name in _ELSEWHERE)
    several = "allOf" in schema and ("$ref" in schema or not (_is_list(schema["allOf"]) and len(schema["allOf"]) == 1))
    conditions = any(name in schema for name in _CONDITIONS)
    return named or several or conditions or any(_composed(part) for _, part in parts(schema))


def _close(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    for _, part in parts(schema):
        _close(part)
    named, needed, fewest = schema.get("properties"), schema.get("required", []), schema.get("minProperties", 0)
    if not (isinstance(named, dict) and named and _is_list(needed) and isinstance(fewest, int)):
        return
    if (
        not any(name in schema for name in _OPEN)
        and fewest <= len(named)
        and all(isinstance(name, str) and name in named for name in needed)
    ):
        schema["additionalProperties"] = False


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
