"""Namespaces, custom tools and tools of OpenAI's servers as functions of a chat."""

from typing import Any

import msgspec
import pytest

from dynamod.features.responses.messages import FunctionTool, ResponsesRequest
from dynamod.features.responses.tools import (
    HOSTED,
    LONGEST_NAME,
    arguments_of,
    check_tools,
    chosen,
    flat_name,
    input_of,
    left_out,
    served,
)
from dynamod.features.responses.translate import to_chat
from dynamod.message.errors import BadRequest

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "description": "Edit files."}
TOOLS = [FUNCTION, {"type": "namespace", "name": "n", "tools": [FUNCTION, PATCH]}, PATCH, {"type": "web_search"}]


def tools(*given: Any) -> list[FunctionTool]:
    return msgspec.convert([*given], list[FunctionTool])


def asked(**fields: Any) -> ResponsesRequest:
    return msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesRequest)


def test_each_becomes_a_function_or_is_left_out() -> None:
    chat = to_chat(asked(tools=TOOLS), ())
    assert [one["function"]["name"] for one in chat.tools or ()] == ["f", "n__f", "n__patch", "patch"]
    one = (chat.tools or [])[3]["function"]
    assert one["description"] == "Edit files."
    assert one["parameters"]["properties"] == {"input": {"type": "string"}}
    assert left_out(tools(*TOOLS)) == ["web_search"]


@pytest.mark.parametrize(
    ("form", "schema", "told"),
    [
        (None, {"type": "string"}, "Edit files."),
        ({"type": "text"}, {"type": "string"}, "Edit files."),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a|b"},
            {"type": "string", "pattern": "^(?:a|b)$"},
            "Edit files.\n\nThe input must match this regex grammar:\na|b",
        ),
        (
            {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}},
            {"type": "string"},
            "Edit files.\n\nThe input must match this lark grammar:\nstart: /a/",
        ),
    ],
)
def test_the_input_of_a_custom_tool(form: Any, schema: dict[str, Any], told: str) -> None:
    (one,) = served(tools({**PATCH, "format": form}))
    check_tools(tools({**PATCH, "format": form}))
    function = one.function()["function"]
    assert (function["parameters"]["properties"]["input"], function["description"]) == (schema, told)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([{"type": "telepathy"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].name"),
        ([{"type": "namespace", "tools": [FUNCTION]}], "tools[0].name"),
        ([FUNCTION, {"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[1].tools[0].name"),
        ([{"type": "namespace", "name": "n", "tools": [TOOLS[1]]}], "tools[0].tools[0].type"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}], "tools[0].tools[0].type"),
        ([{**PATCH, "format": {"type": "xml"}}], "tools[0].format.type"),
        ([{**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": ""}}], "tools[0].format.syntax"),
        ([{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}], "tools[0].format.definition"),
        ([TOOLS[1], {**FUNCTION, "name": "n__f"}], "tools[1]"),
    ],
)
def test_what_is_refused(given: list[Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        check_tools(tools(*given))
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (None, None),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "function", "name": "f", "namespace": "n"}, {"type": "function", "function": {"name": "n__f"}}),
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [PATCH, {"type": "web_search"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "patch"}]},
        ),
    ],
)
def test_a_choice_in_the_words_of_a_chat(choice: Any, found: Any) -> None:
    assert chosen(choice) == found


@pytest.mark.parametrize(
    "choice", ["always", {"type": "function"}, {"type": "web_search"}, {"type": "x"}, {"type": {}}, 5]
)
def test_a_choice_that_is_refused(choice: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        chosen(choice)
    assert raised.value.param == "tool_choice"


def test_a_long_name_ends_with_a_digest() -> None:
    one, other = (flat_name(f"{'f' * 100}{letter}", "n" * 60) for letter in "ab")
    assert len(one) == len(other) == LONGEST_NAME
    assert one != other
    assert flat_name("f", None) == flat_name("f", "") == "f"


@pytest.mark.parametrize("text", ["", "a", '"\n\\', '{"input": 1}', "é"])
def test_an_input_comes_back(text: str) -> None:
    assert input_of(arguments_of(text)) == text


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"other": 1}', '{"input": 1}'])
def test_what_is_no_input_is_the_input(text: str) -> None:
    assert input_of(text) == text


def test_types_that_are_left_out_are_no_types_of_ours() -> None:
    assert HOSTED.isdisjoint(("function", "custom", "namespace"))
