"""Argument values that a model wrote as plain text, as the JSON that the tool's schema asks for."""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

MOST_OPTIONS = 256
"""Schemas of `anyOf`, `oneOf` and `allOf` that are looked at for one value."""
MOST_PYTHON_MARKS = 10_000
"""Commas, quotes and brackets of a Python literal: more than that is only read as JSON, or as one string."""

_MARKS = ",:'\"([{+-"
_ONE_STRING = re.compile(r"""'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+\"""", re.DOTALL)
_OTHER_NAMES = {
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "str": "string",
    "dict": "object",
    "list": "array",
}
"""Types of programming languages that hand-written tools have instead of JSON's."""
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a `$ref` names, itself where it has none; empty when it is none. `root`: where `$ref` looks."""
    for _ in range(8):  # a reference may name a reference, and a wrong one itself
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        target: object = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = _inside(target, part)
        schema = target
    return schema if isinstance(schema, Mapping) else {}


def _inside(value: object, part: str) -> object:
    """What a part of a reference names in a JSON value. Some writers leave names as they are, others encode them."""
    if isinstance(value, list):
        return value[int(part)] if part.isdecimal() and len(part) < 10 and int(part) < len(value) else None
    if not isinstance(value, Mapping):
        return None
    return value[part] if part in value else value.get(unquote(part).replace("~1", "/").replace("~0", "~"))


def member(schema: object, name: str, root: Mapping[str, Any]) -> object:
    """The schema of a member of an object, or of a list's items; None where the schema does not say."""
    found = resolved(schema, root)
    properties = found.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    items = found.get("items")
    return items if isinstance(items, Mapping) else found.get("additionalProperties")


def kinds(schema: object, root: Mapping[str, Any]) -> set[str]:
    """JSON types that a schema allows; empty when it does not say. `root`: where `$ref` looks."""
    return _kinds(schema, root, {})


def _kinds(schema: object, root: Mapping[str, Any], known: dict[int, set[str]]) -> set[str]:
    """As `kinds`. `known`: what was found, by the id of a schema: references may lead to one many times.

    Where a schema leads to itself, it does not say more there.
    """
    option = resolved(schema, root)
    if id(option) in known or len(known) >= MOST_OPTIONS:
        return known.get(id(option), set())
    known[id(option)] = set()
    kind = option.get("type")
    named = {kind} if isinstance(kind, str) else {name for name in _listed(kind) if isinstance(name, str)}
    more = [*_listed(option.get("anyOf")), *_listed(option.get("oneOf"))]
    if not named and not more and isinstance(option.get("enum"), list):
        named = {"string"} if all(isinstance(value, str) for value in option["enum"]) else set()
    found = {_OTHER_NAMES.get(name, name) for name in named}
    for one in more:
        found |= _kinds(one, root, known)
    for one in _listed(option.get("allOf")):
        found = _agreed(found, _kinds(one, root, known))
    known[id(option)] = found
    return found


def _listed(value: object) -> Sequence[object]:
    """A list; nothing where the schema has something else there, which no engine has checked."""
    return value if isinstance(value, list | tuple) else ()


def _agreed(first: set[str], second: set[str]) -> set[str]:
    """Types that two schemas allow: an integer is a number, too. A schema that does not say allows all."""
    if not first or not second:
        return first or second
    both = first & second
    if ("number" in first and "integer" in second) or ("integer" in first and "number" in second):
        both.add("integer")
    return both


def typed(text: str, schema: Mapping[str, Any], name: str) -> str:
    """JSON text of parameter `name` of a tool's schema that was written as `text`."""
    return typed_as(text, member(schema, name, schema), schema)


def typed_as(text: str, schema: object, root: Mapping[str, Any]) -> str:
    """JSON text of a value of this schema that was written as `text`. `root`: where `$ref` looks.

    Text that cannot be what the schema asks for is a JSON string: the client sees what the model wrote.
    """
    allowed = kinds(schema, root)
    plain = text.strip()
    if "string" in allowed:
        others = allowed - {"string", "null"}
        if not others:
            nothing = "null" in allowed and plain.lower() in ("null", "none")
            return "null" if nothing else quoted(text)
    word = _WORDS.get(plain.lower())
    if word == "null" and (not allowed or "null" in allowed):
        return word
    if word is not None and word != "null" and (not allowed or "boolean" in allowed):
        return word
    value = literal(plain)
    if value is None:
        return quoted(text)
    made, kind = value
    if kind == "integer" and "integer" not in allowed and "number" in allowed:
        kind = "number"
    elif kind == "number" and "integer" in allowed and allowed.isdisjoint(("number", "string")):
        number = float(made)
        if number.is_integer() and abs(number) < 1 << 53:  # 42.0 is an integer for JSON Schema
            made, kind = str(int(number)), "integer"
    return made if not allowed or kind in allowed else quoted(text)


def quoted(text: str) -> str:
    """A JSON string."""
    try:
        return msgspec.json.encode(text).decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()


def literal(text: str) -> tuple[str, str] | None:
    """JSON text and JSON type of a JSON or Python literal; None when it is neither."""
    value: object
    try:
        value = msgspec.json.decode(text)
        return text, _kind(value)
    except (ValueError, RecursionError):
        pass
    if sum(map(text.count, _MARKS)) > MOST_PYTHON_MARKS and _ONE_STRING.fullmatch(text) is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            value = _python(text)
        return msgspec.json.encode(value).decode(), _kind(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None


class _Ordered(ast.NodeTransformer):
    """Sets become lists of their different members, in the order of the text."""

    def visit_Set(self, node: ast.Set) -> ast.List:
        members: dict[object, ast.expr] = {}
        for one in node.elts:
            members.setdefault(ast.literal_eval(one), one)
        return ast.List(list(members.values()), ast.Load())


def _python(text: str) -> object:
    """The value of a Python literal. A set's order differs between processes, so a list stands for it."""
    if "{" not in text:
        return ast.literal_eval(text)
    tree = ast.parse(text.lstrip(" \t"), mode="eval")
    return ast.literal_eval(_Ordered().visit(tree))


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", dict: "object", type(None): "null"}
    return names.get(type(value), "array")
