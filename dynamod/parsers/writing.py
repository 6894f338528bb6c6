"""How a format writes calls: the form of an answer that has to be calls, as a structural tag.

A structural tag is a tree of parts that keep to a form, as xgrammar and vLLM have it (`structured/README.md`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dynamod.message.schemas import moved

from .segments import ToolSpec
from .typed import kinds, resolved

Form = dict[str, Any]
_COMPOSED = ("anyOf", "oneOf", "allOf", "if", "patternProperties", "not")
_LONGEST = 10_000
"""Characters of a text that a form may bound."""


class Unwritable(ValueError):
    """The arguments of a tool cannot be written in this format."""


class Parameter(NamedTuple):
    """How one parameter is written. `{key}` stands for its name.

    `text`, `text_end`: around strings, where they are marked otherwise. `quoted`: strings are JSON, too.
    `between`: what stands between two parameters.
    """

    begin: str
    end: str
    text: str = ""
    text_end: str = ""
    quoted: bool = False
    between: str = ""


class Writing(NamedTuple):
    """How calls are written. `{name}` stands for the tool's name.

    `begin`, `end`: around the arguments of a call. `parameter`: how they come one by one; None: as one JSON object.
    `front`, `back`: around all calls. `between`: what stands between two.
    """

    begin: str
    end: str
    parameter: Parameter | None = None
    front: str = ""
    back: str = ""
    between: str = ""


def written_json(
    front: str = "", back: str = "", between: str = "", key: str = "arguments", name: str = "name"
) -> Writing:
    """Calls as JSON objects. `front`, `back`: around each, or around a list where `between` is a comma."""
    begin, end = f'{{"{name}": "{{name}}", "{key}": ', "}"
    if between.startswith(","):
        return Writing(begin, end, None, front, back, between)
    return Writing(front + begin, end + back, between=between)


def calls_form(writing: Writing, tools: Sequence[ToolSpec], *, several: bool) -> Form:
    """The format of an answer that is calls of these tools. `several`: more than one may come. Raises Unwritable."""
    calls = [_call(writing, tool) for tool in tools]
    one = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
    found = [*_said(writing.front), one]
    if several:
        more = _sequence([*_said(writing.between), one])
        found.append({"type": "star", "content": more})
    return _sequence([*found, *_said(writing.back)])


def _call(writing: Writing, tool: ToolSpec) -> Form:
    begin, end = writing.begin.replace("{name}", tool.name), _said(writing.end)
    if writing.parameter is None:
        schema = tool.parameters if tool.parameters.get("type") == "object" else {**tool.parameters, "type": "object"}
        return _sequence([*_said(begin), {"type": "json_schema", "json_schema": schema}, *end])
    return _sequence([*_said(begin), *_parameters(writing.parameter, tool.parameters), *end])


def _parameters(writing: Parameter, root: Mapping[str, Any]) -> list[Form]:
    """Each property in its order; where something stands between them, the required ones first."""
    schema = resolved(root, root)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    open_ended = not properties and schema.get("additionalProperties", False) is not False
    if any(word in schema for word in _COMPOSED) or open_ended or not isinstance(properties, dict):
        raise Unwritable("its parameters are no plain object with `properties`")
    if not isinstance(required, list) or any(name not in properties for name in required):
        raise Unwritable("`required` names what is no property")
    made = {key: _parameter(writing, key, value, root) for key, value in properties.items()}
    if not writing.between:
        return [one if key in required else _optional(one) for key, one in made.items()]
    needed = [one for key, one in made.items() if key in required]
    others = [one for key, one in made.items() if key not in required]
    between = _said(writing.between)
    if needed:
        joined = [part for one in needed for part in (*between, one)][len(between) :]
        return [*joined, *(_optional(_sequence([*between, one])) for one in others)]
    if not others:
        return []
    begun = [
        _sequence([one, *(_optional(_sequence([*between, later])) for later in others[place + 1 :])])
        for place, one in enumerate(others)
    ]
    return [_optional({"type": "or", "elements": begun} if len(begun) > 1 else begun[0])]


def _parameter(writing: Parameter, key: str, schema: object, root: Mapping[str, Any]) -> Form:
    allowed = kinds(schema, root)
    found = resolved(schema, root)
    if writing.quoted or (allowed and "string" not in allowed):
        content: Form = {"type": "json_schema", "json_schema": _whole(schema, root)}
        return _sequence(
            [*_said(writing.begin.replace("{key}", key)), content, *_said(writing.end.replace("{key}", key))]
        )
    begin, end = writing.text or writing.begin, writing.text_end or writing.end
    begin, end = begin.replace("{key}", key), end.replace("{key}", key)
    options = found.get("enum", [found["const"]] if "const" in found else None)
    if options is not None:
        texts = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in options]
        words: list[Form] = [{"type": "const_string", "value": one} for one in texts if one]
        if not words:
            raise Unwritable("a string that must be empty cannot be written")
        inner = words[0] if len(words) == 1 else {"type": "or", "elements": words}
        return _sequence([*_said(begin), inner, *_said(end)])
    most = found.get("maxLength")
    bounded = isinstance(most, int) and 0 <= most <= _LONGEST
    text: Form = {"type": "any_text", **({"max_chars": most} if bounded else {})}
    return {"type": "tag", "begin": begin, "content": text, "end": end}


def _whole(schema: object, root: Mapping[str, Any]) -> object:
    """A schema of its own, with what it refers to."""
    if b'"$ref"' not in msgspec.json.encode(schema):
        return schema
    place = "#/$defs/tool"
    return {"allOf": [moved(schema, place)], "$defs": {"tool": moved(root, place)}}


def _said(text: str) -> list[Form]:
    return [{"type": "const_string", "value": text}] if text else []


def _optional(content: Form) -> Form:
    return {"type": "optional", "content": content}


def _sequence(parts: list[Form]) -> Form:
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts}
