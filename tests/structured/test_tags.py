"""Structural tags in both notations: what an answer may say, and what is refused by its place."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Message, ResponseFormat
from dynamod.message.worker import Grammar
from dynamod.structured.demand import demand
from dynamod.structured.probe import _vocabulary, problem
from dynamod.structured.source import LIMITS, source

NUMBER: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OLDER: Any = {
    "structures": [
        {"begin": "<function=f>", "schema": NUMBER, "end": "</function>"},
        {"begin": "<function=g>", "schema": {}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}
ANY: Any = {"type": "any_text"}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def triggered(**more: Any) -> dict[str, Any]:
    inner = {"type": "json_schema", "json_schema": NUMBER}
    return {"type": "triggered_tags", "triggers": ["<t"], "tags": [tag("<tool>", inner, ["</tool>", "</t>"])], **more}


def separated(**more: Any) -> dict[str, Any]:
    tags = [
        tag("(", {"type": "regex", "pattern": "[0-9]+"}, ")"),
        tag("[", {"type": "grammar", "grammar": 'root ::= "x"+'}, "]"),
    ]
    return {"type": "tags_with_separator", "separator": ",", "tags": tags, **more}


THINKS: Any = {"type": "sequence", "elements": [tag("<think>", ANY, "</think>"), triggered(at_least_one=True)]}
EITHER: Any = {"type": "or", "elements": [const('yes 😀/"'), tag("", triggered(stop_after_first=True), "END")]}

CASES: list[tuple[Any, str, bool]] = [
    (OLDER, "hello", True),
    (OLDER, "a < b", True),
    (OLDER, 'hi <function=f>{"a":1}</function> there <function=g>7</function>', True),
    (OLDER, 'hi <function=f>{"b":1}</function>', False),
    (OLDER, "hi <function=x", False),
    (OLDER, 'hi <function=f>{"a":1}', False),
    (THINKS, '<think>well, <t</think><tool>{"a":1}</t>ok', True),
    (THINKS, '<think>well</think>ok <tool>{"a":1}</t>', False),
    (THINKS, '<tool>{"a":1}</t>', False),
    (separated(), "", True),
    (separated(at_least_one=True), "", False),
    (separated(), "(12),[xx]", True),
    (separated(), "(12)[xx]", False),
    (separated(), "(12),", False),
    (separated(stop_after_first=True), "(12),[xx]", False),
    (EITHER, 'yes 😀/"', True),
    (EITHER, 'foo <tool>{"a":1}</tool>END', True),
    (EITHER, "foo END", True),
    (EITHER, "foo", False),
    (EITHER, "foo ENDx", False),
    (triggered(stop_after_first=True), 'foo <tool>{"a":1}</tool> more', False),
    (triggered(), 'foo <tool>{"a":1}</tool> more', True),
]


@pytest.mark.parametrize(("form", "text", "right"), CASES)
@pytest.mark.parametrize("behind", [False, True])
def test_what_an_answer_may_say(form: Any, text: str, right: bool, behind: bool) -> None:
    value = form if "structures" in form else {"type": "structural_tag", "format": form}
    grammar = Grammar("structural_tag", json.dumps(value), *(("", "</think>") if behind else ()))
    assert problem(grammar) == ("", "")
    matcher = LLMatcher(_vocabulary().tokenizer, source(grammar), log_level=0, limits=LIMITS)
    whole = list((("so</think>" if behind else "") + text).encode())
    fits = matcher.validate_tokens(whole) == len(whole)
    matcher.consume_tokens(whole[: matcher.validate_tokens(whole)])
    assert (fits and matcher.is_accepting()) == right


def asked(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=[Message("user", "hi")], **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **OLDER})}},
        {"structured_outputs": {"structural_tag": {"type": "structural_tag", **OLDER}}},
        {"response_format": ResponseFormat("structural_tag", **OLDER)},
    ],
)
def test_every_field_says_the_same(fields: Any) -> None:
    found = demand(asked(**fields))
    assert found is not None
    grammar = found[1]
    assert grammar.kind == "structural_tag"
    assert json.loads(grammar.text) == {"type": "structural_tag", **OLDER}


@pytest.mark.parametrize(
    ("value", "place", "text"),
    [
        ({}, "", "needs either a `format`, or `structures`"),
        ({**OLDER, "format": ANY}, "", "needs either"),
        ({"formats": ANY}, ".formats", "known are format, structures, triggers, type"),
        ({"structures": [], "triggers": ["a"]}, ".structures", "list that is not empty"),
        ({**OLDER, "triggers": ["<x"]}, ".structures[0].begin", "none of the triggers begins it"),
        ({**OLDER, "triggers": ["<function=", "<f"]}, ".structures[0].begin", "begins with 2 triggers"),
        ({**OLDER, "triggers": ["<function=", "<x"]}, ".triggers[1]", "no tag begins with it"),
        ({"format": {"type": "qwen_xml_parameter"}}, ".format.type", "known are any_text, const_string"),
        ({"format": {"type": ["or"]}}, ".format.type", "known are any_text, const_string"),
        ({"format": const("")}, ".format.value", "a string that is not empty"),
        ({"format": {**const("a"), "x": 1}}, ".format.x", "known are type, value"),
        (
            {"format": {"type": "sequence", "elements": [ANY, const("a")]}},
            ".format.elements[0]",
            "where free text ends",
        ),
        ({"format": tag("a", tag("b", ANY, ""), "c")}, ".format.content.content", "where free text ends"),
        ({"format": tag("a", triggered(), "<")}, ".format.content.triggers", "contain one another"),
        ({"format": {**triggered(), "excludes": ["a"]}}, ".format.excludes", "not served"),
        ({"format": triggered(at_least_one=1)}, ".format.at_least_one", "true or false"),
        ({"format": {"type": "json_schema", "json_schema": 1}}, ".format.json_schema", "JSON Schema"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "xml"}}, ".format.style", "only json"),
        ({"format": tag("a", ANY, ["b", ""])}, ".format.end[1]", "a string that is not empty"),
        ({"format": tag("a", ANY, ["b"] * 129)}, ".format.end", "at most 128"),
        ({"format": const("a" * 70_000)}, "", "at most 65536"),
        ({"format": {"type": "or", "elements": [ANY] * 2100}}, "", "too many parts"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_place(value: Any, place: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text) as found:
        demand(asked(structured_outputs={"structural_tag": value}))
    assert found.value.param == f"structured_outputs.structural_tag{place}"
