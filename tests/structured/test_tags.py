"""Structural tags in both notations: what an answer may say, and what is refused by its place."""

import json
import random
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Message, ResponseFormat
from dynamod.message.worker import LATER_TAGS
from dynamod.structured.demand import demand

from .tagged import (
    ANY,
    JSON,
    NUMBER,
    const,
    either,
    grammar_of,
    keeps,
    keeps_by_tokens,
    sequence,
    several,
    tag,
    without,
)

OLDER: Any = {
    "structures": [
        {"begin": "<function=f>", "schema": NUMBER, "end": "</function>"},
        {"begin": "<function=g>", "schema": {}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def triggered(**more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<t"], "tags": [tag("<tool>", JSON, ["</tool>", "</t>"])], **more}


def separated(**more: Any) -> dict[str, Any]:
    tags = [
        tag("(", {"type": "regex", "pattern": "[0-9]+"}, ")"),
        tag("[", {"type": "grammar", "grammar": 'root ::= "x"+'}, "]"),
    ]
    return {"type": "tags_with_separator", "separator": ",", "tags": tags, **more}


THINKS = sequence(tag("<think>", ANY, "</think>"), triggered(at_least_one=True))
EITHER = either(const('yes 😀/"'), tag("", triggered(stop_after_first=True), "END"))
ABLE: Any = {
    "type": "triggered_tags",
    "triggers": ["A"],
    "tags": [tag("A1", const("L1"), "A"), tag("A2", const("L2"), "A")],
    "at_least_one": True,
    "excludes": ["L1", "L2"],
}
ONES: Any = {"type": "triggered_tags", "triggers": ["1"], "tags": [tag("1", ANY, ["1"])], "excludes": ["ABC"]}
UPTO = sequence(without("ABC"), const("ABC"))


def dispatch(**more: Any) -> dict[str, Any]:
    return {"type": "dispatch", "rules": [["<f>", JSON]], **more}


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
    (ABLE, "A1", False),
    (ABLE, "A1L1AB", True),
    (ABLE, "A1L2A", False),
    (ABLE, "L1A1L1A", False),
    (ABLE, "A1L1AL1", False),
    (ABLE, "A1L1AA2L2A", True),
    (sequence(ONES, const("ABC")), "1ABC", False),
    (sequence(ONES, const("ABC")), "11ABC", True),
    (sequence(ONES, const("ABC")), "1ABC123", False),
    (sequence(ONES, const("ABC")), "2ABC", True),
    (dispatch(excludes=["</r>"]), 'x <f>{"a":1} y', True),
    (dispatch(excludes=["</r>"]), "x</r>", False),
    (tag("<r>", dispatch(), "</r>"), '<r>x <f>{"a":1} y <f>{"a":2}</r>', True),
    (tag("<r>", dispatch(), "</r>"), "<r>x", False),
    (tag("<r>", dispatch(loop=False), "</r>"), '<r>x <f>{"a":1}</r>', True),
    (tag("<r>", dispatch(loop=False), "</r>"), '<r>x <f>{"a":1} y</r>', False),
    (tag("<r>", dispatch(loop=False), "</r>"), "<r>x</r>", True),
    (several("star", const("x")), "", True),
    (several("star", const("x")), "xxx", True),
    (several("plus", const("x")), "", False),
    (several("repeat", tag("<", ANY, ">"), min=1, max=3), "<a><b>", True),
    (several("repeat", tag("<", ANY, ">"), min=1, max=3), "<a><b><c><d>", False),
    (sequence(several("repeat", const("x"), min=0, max=-1), const("y")), "y", True),
    (sequence(several("repeat", const("x"), min=2, max=-1), const("y")), "xy", False),
    (sequence(several("repeat", const("x"), min=0, max=0), const("y")), "xy", False),
    (sequence(several("optional", const("x")), const("y")), "y", True),
    (sequence(several("optional", const("x")), const("y")), "xy", True),
]
FREE: list[tuple[Any, str, bool]] = [
    (without("<end>", "</tag>"), "x <end", True),
    (without("<end>", "</tag>"), "x </tag>", False),
    (without(), "x", True),
    (without(max_chars=3), "xä😀", True),
    (without(max_chars=3), "xä😀x", False),
    (tag("<", without("b", max_chars=3), ">"), "<aaa>", True),
    (tag("<", without("b", max_chars=3), ">"), "<aaaa>", False),
    (tag("<", without("b", max_chars=3), ">"), "<ab>", False),
    (tag("", without("<end>"), "."), "This is.", True),
    (tag("", without("<end>"), "."), "It <end> is.", False),
    (UPTO, "HelloABC", True),
    (UPTO, "ABC", True),
    (UPTO, "ABCABC", False),
    (UPTO, "x", False),
    (sequence(ANY, const("a")), "banana", True),
    (sequence(ANY, const("a")), "banan", False),
    (sequence(ANY, {"type": "regex", "pattern": "/[0-9]+"}), "x/y /12", True),
    (sequence(ANY, {"type": "regex", "pattern": "/[0-9]+"}), "x/y /", False),
    (sequence(ANY, const("a"), {"type": "regex", "pattern": "\\/\n[0-9]"}), "baa/\n1", True),
    (sequence(without("x"), without("y")), "yyxx", True),
    (sequence(without("x"), without("y")), "xxyx", False),
    (sequence(ANY, ANY), "any", True),
    (sequence(ANY, JSON), 'so {"a":1}', True),
    (sequence(ANY, JSON), "so", False),
    (sequence(ANY, JSON), '{ {"a":1}', False),
    (sequence(ANY, tag("<t>", JSON, "</t>")), 'so <t>{"a":1}</t>', True),
    (sequence(ANY, tag("<t>", JSON, "</t>")), "so <t>x</t>", False),
    (sequence(ANY, tag("<t>", JSON, "</t>")), "so", False),
    (sequence(ANY, several("optional", tag("<t>", JSON, "</t>"))), "so", True),
    (sequence(ANY, several("optional", tag("<t>", JSON, "</t>"))), 'so <t>{"a":1}</t>', True),
    (sequence(ANY, several("optional", tag("<t>", JSON, "</t>"))), "so <t>x</t>", False),
    (sequence(ANY, several("plus", tag("<", JSON, ">"))), 'x<{"a":1}><{"a":2}>', True),
    (sequence(ANY, several("plus", tag("<", JSON, ">"))), "x", False),
    (sequence(ANY, either(JSON, tag("<t>", ANY, "</t>"), const("END"))), "so <t>x{</t>", True),
    (sequence(ANY, either(JSON, tag("<t>", ANY, "</t>"), const("END"))), 'so {"a":1}', True),
    (sequence(ANY, either(JSON, tag("<t>", ANY, "</t>"), const("END"))), "so END", True),
    (sequence(ANY, either(JSON, tag("<t>", ANY, "</t>"), const("END"))), "so", False),
    (sequence(ANY, either(tag("<t>", JSON, ""), tag("<t>", const("x"), ""))), "so <t>x", True),
    (sequence(ANY, either(tag("<t>", JSON, ""), tag("<t>", const("x"), ""))), 'so <t>{"a":1}', True),
    (tag("(", sequence(ANY, const("a")), ")"), "(banana)", True),
    (tag("(", sequence(ANY, const("a")), ")"), "(b)a)", False),
    (tag("(", tag("<", ANY, ""), ")"), "(<x)", True),
    (tag("(", sequence(ANY, const(" = " * 80), ANY), ")"), f"(x{' = ' * 80}y)", True),
    (sequence(ANY, triggered()), 'x <tool>{"a":1}</tool> y', True),
    (sequence(ANY, triggered()), "x <t y", False),
    (sequence(triggered(), ANY), 'x <tool>{"a":1}</tool> y', True),
    (sequence(ANY, triggered(at_least_one=True), const(".")), 'x <tool>{"a":1}</tool> y.', True),
    (sequence(ANY, triggered(at_least_one=True), const(".")), "x.", False),
]


@pytest.mark.parametrize(("form", "text", "right"), CASES + FREE)
@pytest.mark.parametrize("behind", [False, True])
def test_what_an_answer_may_say(form: Any, text: str, right: bool, behind: bool) -> None:
    """However it is cut into tokens."""
    grammar, whole = grammar_of(form, *(("", "</think>") if behind else ())), ("so</think>" if behind else "") + text
    assert keeps(grammar, whole) == right
    assert keeps_by_tokens(grammar, whole, random.Random(whole), 25) == {right}


SEPARATED: Any = {"type": "tags_with_separator", "separator": ""}
GRAMMAR: Any = {"type": "grammar", "grammar": 'root ::= "x"'}


FIRST: list[Any] = [
    OLDER,
    THINKS,
    separated(),
    EITHER,
    triggered(stop_after_first=True),
    ANY,
    {**JSON, "style": "json"},
]
FIRST += [either(ANY, tag("<", sequence(JSON, either(ANY, triggered())), ["</a>", "b"])), tag("", JSON, "")]
LATER = [form for form, _, _ in FREE] + [ABLE, dispatch(), several("star", const("x"))]
LATER += [{**JSON, "style": "qwen_xml"}, {"type": "qwen_xml_parameter", "json_schema": NUMBER}]


@pytest.mark.parametrize(("form", "later"), [(one, False) for one in FIRST] + [(one, True) for one in LATER])
def test_what_the_first_version_did_not_read_needs_a_word(form: Any, later: bool) -> None:
    found = demand(asked(structured_outputs={"structural_tag": json.loads(grammar_of(form).text)}))
    assert found is not None
    assert found[1].words == ("structural_tag", *((LATER_TAGS,) if later else ()))


@given(st.text(st.characters(codec="utf-8"), max_size=8), st.text(st.characters(codec="utf-8"), min_size=1, max_size=8))
def test_any_string_ends_free_text(text: str, end: str) -> None:
    for form in (const(end), {"type": "regex", "pattern": re.escape(end)}):
        assert keeps(grammar_of(sequence(ANY, form)), text + end)
        assert keeps(grammar_of(sequence(without(end), form)), text + end) == (end not in text)
    ended = grammar_of(tag("", ANY, end))
    assert keeps(ended, text + end) == ((text + end).index(end) == len(text))


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
        ({"format": {"type": "any_tokens"}}, ".format.type", "known are any_text, const_string"),
        ({"format": {"type": "qwen_xml_parameter"}}, ".format.json_schema", "a JSON Schema, which is an object"),
        ({"format": {"type": ["or"]}}, ".format.type", "known are any_text, const_string"),
        ({"format": const("")}, ".format.value", "a string that is not empty"),
        ({"format": {**const("a"), "x": 1}}, ".format.x", "known are type, value"),
        ({"format": sequence(ANY, GRAMMAR)}, ".format.elements[0]", "where free text ends"),
        ({"format": sequence(ANY, several("star", GRAMMAR))}, ".format.elements[0]", "where free text ends"),
        ({"format": sequence(ANY, without("a"), const("b"), JSON)}, ".format.elements[0]", "where free text ends"),
        ({"format": several("star", ANY)}, ".format.content", "where free text ends"),
        ({"format": triggered(tags=[tag("<t", ANY, "")])}, ".format.tags[0].content", "where free text ends"),
        ({"format": tag({"type": "token", "token": 7}, ANY, "")}, ".format.begin", "single tokens are not served"),
        ({"format": tag("", ANY, {"type": "token", "token": 7})}, ".format.end", "single tokens are not served"),
        ({"format": without("a", "")}, ".format.excludes[1]", "a string that is not empty"),
        ({"format": without(*"a" * 129)}, ".format.excludes", "at most 128"),
        ({"format": without(max_chars=-1)}, ".format.max_chars", "a number from 0 to 10000"),
        ({"format": without(max_tokens=5)}, ".format.max_tokens", "known are type, excludes, max_chars"),
        ({"format": several("repeat", ANY, min=2, max=1)}, ".format.max", "a number from 2 to 10000"),
        ({"format": {"type": "dispatch", "rules": [["a"]]}}, ".format.rules[0]", "a list of a string and a format"),
        ({"format": {**JSON, "any_order": True}}, ".format.any_order", "must be false"),
        ({"format": tag("a", triggered(), "<")}, ".format.content.triggers", "contain one another"),
        ({"format": {**triggered(), "excludes": "a"}}, ".format.excludes", "list that is not empty"),
        ({"format": triggered(at_least_one=1)}, ".format.at_least_one", "true or false"),
        ({"format": {"type": "json_schema", "json_schema": 1}}, ".format.json_schema", "JSON Schema"),
        (
            {"format": {"type": "json_schema", "json_schema": {}, "style": "xml"}},
            ".format.style",
            "known are json, qwen_xml",
        ),
        ({"format": tag("a", ANY, ["b", ""])}, ".format.end[1]", "a string that is not empty"),
        ({"format": tag("a", ANY, ["b"] * 129)}, ".format.end", "at most 128"),
        ({"format": const("a" * 70_000)}, "", "at most 65536"),
        ({"format": {**SEPARATED, "tags": [tag("", ANY, str(one)) for one in range(950)]}}, ".format", "at most 512"),
        ({"format": sequence(*[several("optional", const(f"{one}ab")) for one in range(900)])}, "", "too many parts"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_place(value: Any, place: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text) as found:
        demand(asked(structured_outputs={"structural_tag": value}))
    assert found.value.param == f"structured_outputs.structural_tag{place}"
