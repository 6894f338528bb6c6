"""Which form a request asks for, by which field, and what is refused."""

import json
from typing import Any

import hypothesis.strategies as st
import jsonschema_rs
import msgspec
import pytest
from hypothesis import given

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.message.worker import Grammar
from dynamod.structured.demand import JSON_OBJECT, MAX_BYTES, MAX_DEPTH, demand

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
AS_JSON = Grammar("json", json.dumps(SCHEMA, separators=(",", ":")))


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)


@pytest.mark.parametrize(
    ("fields", "field", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", JSON_OBJECT),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            "response_format.json_schema.schema",
            AS_JSON,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", AS_JSON),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json", AS_JSON),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", JSON_OBJECT),
        (
            {"structured_outputs": {"json_object": False, "regex": "a"}},
            "structured_outputs.regex",
            Grammar("regex", "a"),
        ),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs.choice", Grammar("choice", '["a","b"]')),
        ({"guided_json": SCHEMA}, "guided_json", AS_JSON),
        ({"guided_regex": "[0-9]+"}, "guided_regex", Grammar("regex", "[0-9]+")),
        ({"guided_grammar": 'start: "a"'}, "guided_grammar", Grammar("grammar", 'start: "a"')),
        ({"nvext": {"guided_choice": ["yes", "no"]}}, "nvext.guided_choice", Grammar("choice", '["yes","no"]')),
        ({"nvext": {"guided_json": SCHEMA}}, "nvext.guided_json", AS_JSON),
        ({"grammar": 'root ::= "a"'}, "grammar", Grammar("grammar", 'root ::= "a"')),
        ({"json_schema": SCHEMA}, "json_schema", AS_JSON),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, "guided_regex", Grammar("regex", "a")),
    ],
)
def test_every_field(fields: dict[str, Any], field: str, grammar: Grammar) -> None:
    assert demand(chat(**fields)) == (field, grammar)
    assert demand(msgspec.convert({"prompt": "x", **fields}, CompletionRequest)) == (field, grammar)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"nvext": {}}])
def test_any_text(fields: dict[str, Any]) -> None:
    assert demand(chat(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, ("response_format", "guided_regex")),
        ({"guided_json": SCHEMA, "nvext": {"guided_json": SCHEMA}}, ("guided_json", "nvext.guided_json")),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
            ("structured_outputs.json", "structured_outputs.regex"),
        ),
        ({"guided_choice": ["a"], "json_schema": SCHEMA}, ("guided_choice", "json_schema")),
        ({"grammar": "a", "json_schema": SCHEMA}, ("grammar", "json_schema")),
    ],
)
def test_two_forms_are_refused_by_name(fields: dict[str, Any], names: tuple[str, str]) -> None:
    with pytest.raises(BadRequest) as caught:
        demand(chat(**fields))
    assert caught.value.param == names[1]
    assert all(f"`{name}`" in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": {"type": "xml_schema"}}, "response_format.type", "unsupported_parameter"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema",
            None,
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema",
            None,
        ),
        ({"structured_outputs": {}}, "structured_outputs", None),
        ({"structured_outputs": []}, "structured_outputs", None),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", None),
        ({"structured_outputs": {"ebnf": "x"}}, "structured_outputs.ebnf", "unsupported_parameter"),
        ({"guided_json": "{"}, "guided_json", None),
        ({"guided_json": "[" * 100_000}, "guided_json", None),
        ({"guided_json": "[" * 5_000}, "guided_json", None),
        ({"guided_json": 3}, "guided_json", None),
        ({"guided_regex": ""}, "guided_regex", None),
        ({"guided_regex": "a" * (MAX_BYTES + 1)}, "guided_regex", None),
        ({"guided_regex": "ä" * (MAX_BYTES // 2 + 1)}, "guided_regex", None),
        ({"guided_choice": []}, "guided_choice", None),
        ({"guided_choice": ["a", ""]}, "guided_choice", None),
        ({"guided_choice": "a"}, "guided_choice", None),
        ({"nvext": {"guided_grammar": {}}}, "nvext.guided_grammar", None),
    ],
)
def test_what_is_no_form(fields: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        demand(chat(**fields))
    assert (caught.value.param, caught.value.code) == (param, code)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_depth() -> None:
    assert demand(chat(guided_json=nested(MAX_DEPTH))) is not None
    with pytest.raises(BadRequest, match=f"more than {MAX_DEPTH}.*`guided_json.items.items"):
        demand(chat(guided_json=nested(MAX_DEPTH + 1)))
    with pytest.raises(BadRequest, match=r"anyOf\[1\]"):
        demand(chat(guided_json={"anyOf": [{}, nested(MAX_DEPTH)]}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=2))
def test_whatever_comes_is_a_form_or_refused(fields: dict[str, Any]) -> None:
    try:
        found = demand(chat(**fields))
    except BadRequest as error:
        assert error.param  # noqa: PT017 - most bodies are no mistake
        return
    assert (found is None) == all(value is None for value in fields.values())
    assert found is None or msgspec.msgpack.decode(msgspec.msgpack.encode(found[1]), type=Grammar) == found[1]


@pytest.mark.parametrize("function", [{"name": "now"}, {"name": "now", "parameters": None}])
def test_a_forced_call_of_a_function_without_parameters_has_no_arguments(function: dict[str, Any]) -> None:
    found = demand(chat(tools=[{"type": "function", "function": function}], tool_choice="required"))
    assert found is not None
    calls = jsonschema_rs.validator_for(json.loads(found[1].text))
    assert calls.is_valid([{"name": "now", "arguments": {}}])
    assert not calls.is_valid([{"name": "now", "arguments": {"place": "here"}}])
