"""Objects whose schema names properties have no others, unless it says so or is put together of several."""

import json
from typing import Any

import pytest

from dynamod.message.worker import Grammar
from dynamod.structured.closed import close

from .test_matcher import BYTES

X = {"x": {"type": "integer"}}
POINT: dict[str, Any] = {"type": "object", "properties": X}
SHUT = {**POINT, "additionalProperties": False}


def closed(schema: Any) -> Any:
    found = json.loads(json.dumps(schema))
    close(found)
    return found


def takes(schema: Any, text: str) -> bool:
    """Whether a text is an answer by a schema."""
    matcher = BYTES.matcher(Grammar("json", json.dumps(schema)))
    for byte in text.encode():
        if not matcher.mask()[byte >> 3] >> (byte & 7) & 1:
            return False
        matcher.accept(byte)
    return matcher.may_end


@pytest.mark.parametrize(
    ("schema", "shut"),
    [
        (POINT, SHUT),
        ({**POINT, "required": [["x"]]}, {**POINT, "required": [["x"]]}),
        ({**POINT, "required": [{}]}, {**POINT, "required": [{}]}),
        ({"properties": X}, {"properties": X, "additionalProperties": False}),
        ({"properties": {"properties": POINT}}, {"properties": {"properties": SHUT}, "additionalProperties": False}),
        ({"type": "array", "items": POINT}, {"type": "array", "items": SHUT}),
        ({"anyOf": [POINT, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, {"$ref": "#/$defs/p", "$defs": {"p": SHUT}}),
        ({"allOf": [POINT], "description": "d"}, {"allOf": [SHUT], "description": "d"}),
        ({"enum": [POINT]}, {"enum": [POINT]}),
        ({"default": POINT, "const": POINT}, {"default": POINT, "const": POINT}),
    ],
)
def test_what_is_closed(schema: Any, shut: Any) -> None:
    assert closed(schema) == shut


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**POINT, "additionalProperties": True},
        {**POINT, "additionalProperties": {"type": "string"}},
        {**POINT, "patternProperties": {"^y": {"type": "string"}}},
        {**POINT, "unevaluatedProperties": {"type": "string"}},
        {**POINT, "required": ["x", "y"]},
        {**POINT, "minProperties": 2},
        {"allOf": [POINT, {"properties": {"y": {}}}]},
        {**POINT, "anyOf": [{"required": ["y"]}, {"required": ["z"]}]},
        {**POINT, "$ref": "#/$defs/p", "$defs": {"p": POINT}},
        {"allOf": [{"$ref": "#/$defs/p"}], "properties": {"y": {}}, "$defs": {"p": POINT}},
        {"items": {"if": POINT, "then": {}}},
        True,
    ],
)
def test_what_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema


def test_answers() -> None:
    assert takes(POINT, '{"x":1}')
    assert takes(POINT, "{}")
    assert not takes(POINT, '{"x":1,"y":2}')
    assert not takes(POINT, '{"y":2}')
    assert takes({**POINT, "additionalProperties": True}, '{"x":1,"y":2}')
    assert takes({"type": "object"}, '{"y":2}')
    assert takes({"allOf": [POINT, {"properties": {"y": {"const": 2}}}]}, '{"x":1,"y":2}')
