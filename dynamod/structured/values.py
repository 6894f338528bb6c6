"""What the values of a schema look like between tags: strings as they are, lists of texts, or JSON. Pure."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dynamod.message.worker import Grammar

from .fields import listed, number, schema, string
from .lark import TagError, choice, literal, regex

RAW: Final = "raw"
JSON: Final = "json"
DICT: Final = "dict"
LIST: Final = "list"

NOTES = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema")
"""Members of a schema that say nothing of values."""
_ROOT = ("$id", "$defs", "definitions", "strict")
_SCALARS = {"null": "/null/", "boolean": "/true|false/", "integer": "/-?(0|[1-9][0-9]*)/"}
_SCALARS["number"] = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
_TYPES = ("string", *_SCALARS, "array", "object")
_OF_STRINGS = ("type", "minLength", "maxLength", "pattern")
_OF_OTHERS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("items", "minItems", "maxItems", "properties", "required", "additionalProperties"),
)
_DEEP = 32
"""References and alternatives in a row."""

Part = Callable[[Grammar, str], str]


@dataclass(frozen=True)
class Value:
    """A form that a value may have. `kind`: as what it is marked.

    `text`: an expression of a terminal that it matches; RAW without one is any text. `given`: of the other kinds the
    schema.
    """

    kind: str
    text: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


def resolved(given: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The schema itself, where one only refers to it. Raises TagError."""
    for _ in range(_DEEP):
        inner = given.get("allOf")
        if isinstance(inner, list) and len(inner) == 1 and not given.keys() - {"allOf", *NOTES, *_ROOT}:
            given = schema(inner[0], f"{place}.allOf[0]")
        elif isinstance(reference := given.get("$ref"), str):
            if given.keys() - {"$ref", *NOTES, *_ROOT}:
                raise TagError(f"{place}.$ref", "other members next to it are not served here")
            given = _pointed(reference, root, f"{place}.$ref")
        else:
            return given
    raise TagError(place, "it refers to itself")


def _pointed(reference: str, root: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    found: Any = root
    head, _, path = reference.partition("/")
    for name in path.split("/") if path else ():
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if head != "#" or not isinstance(found, (dict, bool)):
        raise TagError(place, f"{reference[:80]!r} is not in the schema")
    return schema(found, place)


def members(
    given: Mapping[str, Any], place: str, style: str
) -> tuple[Mapping[str, Any], Collection[str], Mapping[str, Any] | None]:
    """Properties of an object, which of them it needs, and the schema of others; None: it has no others.

    An object that names properties has no others unless it says so, as everywhere. Raises TagError.
    """
    served = ("type", "properties", "required", "additionalProperties")
    if wrong := sorted(given.keys() - {*served, *NOTES, *_ROOT}):
        raise TagError(f"{place}.{wrong[0]}", f"it is not served in the style {style}; known are {', '.join(served)}")
    if given.get("type", "object") != "object":
        raise TagError(f"{place}.type", f"it must be object in the style {style}")
    properties, required = given.get("properties", {}), given.get("required", [])
    if not isinstance(properties, dict) or "" in properties:
        raise TagError(f"{place}.properties", "it must be an object of schemas by name")
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        raise TagError(f"{place}.required", f"it must be a list of `properties` in the style {style}")
    others = given.get("additionalProperties", not properties)
    return properties, frozenset(required), None if others is False else schema(others, f"{place}.additionalProperties")


def values(
    given: Mapping[str, Any], root: Mapping[str, Any], place: str, part: Part, *, nested: bool, separate: bool
) -> list[Value]:
    """The forms of a value. `nested`: objects and lists are no JSON. `separate`: the opening tag says which form it is.

    `part`: takes expressions that are checked. Raises TagError where it is not clear what a value is.
    """
    found = _Forms(root, part, nested).of(given, place, 0)
    strings = [one for one in found if one.kind == RAW]
    others = [one for one in found if one.kind == JSON]
    any_text = [Value(RAW)] if any(not one.text for one in strings) else []
    if not separate and any_text:
        return any_text
    if not separate and strings and others:
        if not all(one.text for one in others):
            raise TagError(place, "strings that keep to a form stand next to JSON here, and both would look the same")
        return [Value(RAW, choice(one.text for one in found))]
    made = any_text or ([Value(RAW, choice(one.text for one in strings))] if strings else [])
    if others:
        together = {"anyOf": [one.given for one in others]} if len(others) > 1 else others[0].given
        made.append(Value(JSON, given=together))
    return made + [one for one in found if one.kind in (DICT, LIST)]


class _Forms:
    def __init__(self, root: Mapping[str, Any], part: Part, nested: bool) -> None:
        self._root, self._part, self._nested = root, part, nested

    def of(self, given: Mapping[str, Any], place: str, depth: int) -> list[Value]:
        """Raises TagError."""
        given = resolved(given, self._root, place)
        said = {name: value for name, value in given.items() if name not in (*NOTES, *_ROOT)}
        if depth > _DEEP:
            raise TagError(place, "it has too many alternatives within each other, or refers to itself")
        for name in ("anyOf", "oneOf"):
            if name in said:
                if len(said) > 1:
                    raise TagError(f"{place}.{name}", "other members next to it are not served here")
                inner = [(where, schema(one, where)) for where, one in listed(said[name], f"{place}.{name}")]
                return [value for where, one in inner for value in self.of(one, where, depth + 1)]
        if "const" in said or "enum" in said:
            return self._constants(said, place)
        if not said:
            return [Value(JSON)] if self._nested else [Value(RAW), Value(JSON)]
        types = said.get("type")
        if isinstance(types, list) and types:
            return [value for one in types for value in self._typed(_of_type(said, one), place)]
        return self._typed(said, place)

    def _constants(self, given: Mapping[str, Any], place: str) -> list[Value]:
        if other := sorted(given.keys() - {"const", "enum", "type"}):
            raise TagError(f"{place}.{other[0]}", "it is not served next to `const` or `enum`")
        found = [one for _, one in listed(given["enum"], f"{place}.enum")] if "enum" in given else [given["const"]]
        found = [one for one in found if "const" not in given or one == given["const"]]
        types = given.get("type", [*_TYPES])
        types = types if isinstance(types, list) else [types]
        right = [one for one in found if any(_is(one, kind) for kind in types)]
        if not right:
            raise TagError(place, "no value is what all its members say")
        return [_constant(one) for one in right]

    def _typed(self, given: Mapping[str, Any], place: str) -> list[Value]:
        kind = given.get("type")
        if kind not in _TYPES:
            raise TagError(f"{place}.type", f"it must be one of {', '.join(_TYPES)}")
        if kind == "string":
            return [Value(RAW, self._string(given, place))]
        if kind in _SCALARS:
            return [Value(JSON, _SCALARS[kind] if len(given) == 1 else "", given)]
        if self._nested:
            return [Value(DICT if kind == "object" else LIST, given=given)]
        return [Value(JSON, given=given)]

    def _string(self, given: Mapping[str, Any], place: str) -> str:
        texts = []
        for name in given:
            if name not in _OF_STRINGS:
                raise TagError(f"{place}.{name}", f"it is not served of text; known are {', '.join(_OF_STRINGS)}")
        if "minLength" in given or "maxLength" in given:
            least = number(given, place, "minLength") if "minLength" in given else 0
            most = number(given, place, "maxLength", least) if "maxLength" in given else ""
            texts.append(f"/(?s:.{{{least},{most}}})/")
        if "pattern" in given:
            pattern = string(given["pattern"], f"{place}.pattern")
            self._part(Grammar("regex", whole := _unanchored(pattern)), f"{place}.pattern")
            texts.append(regex(whole))
        return " & ".join(texts)


def _constant(value: Any) -> Value:
    if isinstance(value, str):
        return Value(RAW, literal(value) or "/()/")
    return Value(JSON, literal(json.dumps(value, ensure_ascii=False, separators=(",", ":"))), {"const": value})


def _unanchored(pattern: str) -> str:
    """A pattern of JSON Schema, which is looked for anywhere in a text, as one of the whole text."""
    begins = pattern.startswith("^")
    inner = pattern[1:] if begins else pattern
    before = inner.removesuffix("$")
    ends = before != inner and (len(before) - len(before.rstrip("\\"))) % 2 == 0  # else the sign itself is meant
    any_text = "(?s:.*)"
    return f"{'' if begins else any_text}({before if ends else inner}){'' if ends else any_text}"


def _of_type(given: Mapping[str, Any], kind: Any) -> Mapping[str, Any]:
    """What a schema of several types says of one: the others' members say nothing of it."""
    others = _OF_OTHERS if kind == "string" else _OF_STRINGS
    return {**{name: value for name, value in given.items() if name not in others}, "type": kind}


def _is(value: Any, kind: object) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return kind == "number" or (kind == "integer" and (isinstance(value, int) or value.is_integer()))
    return kind == ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object")
