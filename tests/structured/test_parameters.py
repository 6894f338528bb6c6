"""Parameters of calls between tags, by a schema: what each style takes, and what is refused by its place."""

import random
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Message
from dynamod.structured.demand import demand
from dynamod.structured.lengths import LARGEST
from dynamod.structured.parameters import STYLES

from .tagged import ANY, either, grammar_of, keeps, keeps_by_tokens, sequence, tag

BOTH: Any = {"name": {"type": "string"}, "age": {"type": "integer"}}
HTML = "<!DOCTYPE html>\n<b>Bob &lt;</b>"
TEXTS = {
    "qwen_xml": "<parameter=name>{}</parameter>\n<parameter=age>{}</parameter>",
    "minimax_xml": '<parameter name="name">{}</parameter>\n<parameter name="age">{}</parameter>',
    "deepseek_xml": '<｜DSML｜parameter name="name" string="true">{}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="age" string="false">{}</｜DSML｜parameter>',
    "glm_xml": "<arg_key>name</arg_key><arg_value>{}</arg_value>\n<arg_key>age</arg_key>\n<arg_value>{}</arg_value>",
    "cohere_xml": '<cofl:value name="name" type="raw">{}</cofl:value>\n'
    '<cofl:value name="age" type="json">{}</cofl:value>',
}


def parameters(style: str, properties: Any, **more: Any) -> dict[str, Any]:
    given = {"type": "object", "properties": properties, **more}
    return {"type": "json_schema", "style": style, "json_schema": given}


def value(schema: Any, style: str = "qwen_xml", **more: Any) -> dict[str, Any]:
    return parameters(style, {"v": schema}, required=["v"], **more)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("name", "age", "right"),
    [("Bob", "100", True), (HTML, "\t100\n", True), ("", "-1", True), ("Bob", "x", False), ("Bob", "", False)],
)
def test_each_style(style: str, name: str, age: str, right: bool) -> None:
    """Strings are as they are, and what is no string is JSON."""
    grammar, text = grammar_of(parameters(style, BOTH, required=["name", "age"])), TEXTS[style].format(name, age)
    assert keeps(grammar, text) == right
    assert keeps_by_tokens(grammar, text, random.Random(text), 25) == {right}
    assert not keeps(grammar, text[: text.index("\n<")]), "a parameter is missing"
    one, other = text.split("\n<", 1)
    assert not keeps(grammar, f"<{other}\n{one}"), "they come in their order"
    for wrong in STYLES.keys() - {style}:
        assert not keeps(grammar, TEXTS[wrong].format(name, age))


def p(text: str) -> str:
    return f"<parameter=v>{text}</parameter>"


def c(text: str, kind: str, name: str = ' name="v"') -> str:
    return f'<cofl:value{name} type="{kind}">{text}</cofl:value>'


def d(text: str, mark: str) -> str:
    return f'<｜DSML｜parameter name="v" string="{mark}">{text}</｜DSML｜parameter>'


TREE: Any = {
    "type": "object",
    "properties": {"mode": {"type": "string"}, "on": {"type": "boolean"}},
    "required": ["mode"],
}
ONE_OF: Any = {"oneOf": [TREE, {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1}]}
MIXED: Any = {"enum": ["ready", 7]}
VALUES: list[tuple[Any, str, bool]] = [
    (value({"const": "hello"}), p("hello"), True),
    (value({"const": "hello"}), p("\nhello\n"), True),
    (value({"const": "hello"}), p('"hello"'), False),
    (value({"const": ""}), p(""), True),
    (value({"const": 42}), p("42"), True),
    (value({"const": 42}), p("43"), False),
    (value({"const": '"\\'}), p('"\\'), True),
    (value({"enum": ["hello", 42, None, {"a": [1]}]}), p('{"a":[1]}'), True),
    (value({"enum": ["hello", 42, None, {"a": [1]}]}), p("null"), True),
    (value({"enum": ["hello", 42, None, {"a": [1]}]}), p("4"), False),
    (value({"enum": [1, 2]}), p("2"), True),
    (value({"anyOf": [{"type": "string"}, {"type": "integer"}]}), p("hello world"), True),
    (value({"anyOf": [{"type": "integer"}, {"type": "null"}]}), p("null"), True),
    (value({"anyOf": [{"type": "integer"}, {"type": "null"}]}), p("x"), False),
    (value({"anyOf": [{"enum": ["a"]}, {"type": "null"}, {"type": "number"}]}), p("-1.5e3"), True),
    (value({"anyOf": [{"enum": ["a"]}, {"type": "null"}, {"type": "number"}]}), p("b"), False),
    (value({"type": ["integer", "null"], "minimum": 5}), p("123"), True),
    (value({"type": ["integer", "null"], "minimum": 5}), p("4"), False),
    (value({"type": "string", "pattern": "^[a-c/]{2}$"}), p("a/"), True),
    (value({"type": "string", "pattern": "^[a-c]{2}$"}), p("abc"), False),
    (value({"type": "string", "pattern": "[0-9]", "maxLength": 4}), p("ab1"), True),
    (value({"type": "string", "pattern": "[0-9]", "maxLength": 4}), p("abc"), False),
    (value({"type": "string", "pattern": "[0-9]", "maxLength": 4}), p("abcd1"), False),
    (value({"type": "string", "minLength": 2}), p("ab"), True),
    (value({"type": "string", "minLength": 2}), p(" a"), True),
    (value({"type": "string", "pattern": "^a\\$"}), p("a$b"), True),
    (value({"type": "string", "pattern": "a\\\\$"}), p("ba\\"), True),
    (value({"type": "string", "pattern": "a\\\\$"}), p("ba\\b"), False),
    (value({"type": ["string", "integer"], "minimum": 5, "maxLength": 1}, "cohere_xml"), c("4", "raw"), True),
    (value({"type": ["string", "integer"], "minimum": 5, "maxLength": 1}, "cohere_xml"), c("4", "json"), False),
    (value({"type": ["string", "integer"], "minimum": 5, "maxLength": 1}, "cohere_xml"), c("55", "json"), True),
    (value({"type": "integer", "enum": ["a", 1, True]}), p("1"), True),
    (value({"type": "integer", "enum": ["a", 1, True]}), p("a"), False),
    (value({"type": "integer", "enum": ["a", 1, True]}), p("true"), False),
    (value({"type": ["string", "null"], "enum": ["a", None], "const": None}), p("null"), True),
    (value({"type": "string", "minLength": 2}), p("a"), False),
    (value({"type": "array", "items": {"type": "integer"}}), p("[1, 2]"), True),
    (value({"type": "array", "items": {"type": "integer"}}), p("[x]"), False),
    (value({"type": "object"}), p('{"</parameter>": 1}'), True),
    (value({"type": "object"}), p("x"), False),
    (value({}), p("any <b>"), True),
    (value(True), p("any <b>"), True),
    (value({"$ref": "#/$defs/T"}, **{"$defs": {"T": {"allOf": [{"type": "integer"}]}}}), p("1"), True),
    (value({"$ref": "#/$defs/T"}, **{"$defs": {"T": {"allOf": [{"type": "integer"}]}}}), p("x"), False),
    (
        value({"type": "array", "items": {"$ref": "#/$defs/U"}}, **{"$defs": {"U": {"type": "integer"}}}),
        p("[1]"),
        True,
    ),
    (value({}, "deepseek_xml"), d("x", "true"), True),
    (value({}, "deepseek_xml"), d("[1]", "false"), True),
    (value({}, "deepseek_xml"), d("x", "false"), False),
    (value(MIXED, "deepseek_xml"), d("ready", "true"), True),
    (value(MIXED, "deepseek_xml"), d("7", "false"), True),
    (value(MIXED, "deepseek_xml"), d("7", "true"), False),
    (value(MIXED, "cohere_xml"), c("ready", "raw"), True),
    (value(MIXED, "cohere_xml"), c("7", "json"), True),
    (value(MIXED, "cohere_xml"), c("ready", "json"), False),
    (value({"type": ["string", "integer"]}, "cohere_xml"), c("123", "json"), True),
    (value({"type": ["string", "integer"]}, "cohere_xml"), c("123", "dict"), False),
    (value({}, "cohere_xml"), c('"x"', "json"), True),
    (value(TREE, "cohere_xml"), c(c("a", "raw", ' name="mode"') + c("true", "json", ' name="on"'), "dict"), True),
    (value(TREE, "cohere_xml"), c("\n" + c("a", "raw", ' name="mode"') + "\n", "dict"), True),
    (value(TREE, "cohere_xml"), c(c("true", "json", ' name="on"'), "dict"), False),
    (value(ONE_OF, "cohere_xml"), c(c("1", "json", ""), "list"), True),
    (value(ONE_OF, "cohere_xml"), c(c("1", "json", "") * 2, "list"), False),
    (value(ONE_OF, "cohere_xml"), c(c("1", "json", ' name="0"'), "list"), False),
    (value({"type": "array"}, "cohere_xml"), c(f"\n{c('[]', 'json', '')}\n{c('1', 'json', '')}", "list"), True),
    (value({"type": "array"}, "cohere_xml"), c("", "list"), True),
]
SOME = parameters("qwen_xml", {"a": {"type": "string"}, "b": {"type": "integer"}}, required=["a"])
CALL = tag("<function=f>\n", SOME, "\n</function>")
MORE = parameters("qwen_xml", {"a": {"type": "string"}}, additionalProperties={"type": "integer"})
FREE: Any = {"type": "qwen_xml_parameter", "json_schema": {"type": "object"}}
OBJECTS: list[tuple[Any, str, bool]] = [
    (CALL, "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>", True),
    (CALL, "<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n1\n</parameter>\n</function>", True),
    (CALL, "<function=f>\n<parameter=b>\n1\n</parameter>\n</function>", False),
    (CALL, "<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=c>1</parameter>\n</function>", False),
    (sequence(CALL, CALL), 2 * "<function=f>\n<parameter=a></parameter>\n</function>", True),
    (sequence(SOME, either(ANY, SOME)), "<parameter=a></parameter>then", True),
    (MORE, "", True),
    (MORE, "<parameter=zz>3</parameter>", True),
    (MORE, "<parameter=zz>x</parameter>", False),
    (MORE, "<parameter=a>x</parameter><parameter=b>1</parameter> ", True),
    (MORE, "<parameter=b>1</parameter><parameter=a>x</parameter>", False),
    (MORE, "<parameter=1>1</parameter>", False),
    (FREE, "<parameter=zz>x y</parameter>\n<parameter=y1></parameter>", True),
    (FREE, "", True),
    (parameters("glm_xml", {}, additionalProperties=False), "", True),
    (parameters("glm_xml", {}, additionalProperties=False), "x", False),
]


@pytest.mark.parametrize(("form", "text", "right"), VALUES + OBJECTS)
def test_what_may_be_said(form: Any, text: str, right: bool) -> None:
    grammar = grammar_of(form)
    assert keeps(grammar, text) == right
    assert keeps_by_tokens(grammar, text, random.Random(text), 25) == {right}


INTEGERS = st.integers(-LARGEST, LARGEST)
"""Those that a schema without bounds allows."""


@given(st.sampled_from([*STYLES]), st.text(st.characters(codec="utf-8"), max_size=60), INTEGERS, st.randoms())
def test_any_text_and_number(style: str, name: str, age: int, chance: random.Random) -> None:
    """But for the closing tag, behind which something else comes."""
    grammar = grammar_of(parameters(style, BOTH, required=["name", "age"]))
    text = TEXTS[style].format(name, age)
    assert keeps_by_tokens(grammar, text, chance, 2) == {True}


LIST: Any = {"type": "array", "items": {"$ref": "#/$defs/L"}}


@pytest.mark.parametrize(
    ("form", "place", "text"),
    [
        (parameters("xml", {}), ".style", "known are json, qwen_xml"),
        (parameters("kimi_k3_xml", {}), ".style", "it is not served"),
        (parameters("qwen_xml", {}, minProperties=1), ".json_schema.minProperties", "known are type, properties"),
        (parameters("qwen_xml", {}, type="array"), ".json_schema.type", "must be object"),
        (parameters("qwen_xml", {}, required=["a"]), ".json_schema.required", "a list of `properties`"),
        (parameters("qwen_xml", []), ".json_schema.properties", "an object of schemas"),
        (parameters("qwen_xml", {"a": 1}), ".json_schema.properties.a", "a JSON Schema"),
        (value({"type": "text"}), ".json_schema.properties.v.type", "one of string, null"),
        (value({"minimum": 1}), ".json_schema.properties.v.type", "one of string, null"),
        (value({"type": "string", "format": "date"}), ".json_schema.properties.v.format", "not served of text"),
        (value({"type": "string", "minLength": -1}), ".json_schema.properties.v.minLength", "a number from 0"),
        (value({"type": "array", "minItems": "x"}, "cohere_xml"), ".json_schema.properties.v.minItems", "a number"),
        (value({"type": "array", "uniqueItems": True}, "cohere_xml"), ".json_schema.properties.v.uniqueItems", "known"),
        (value({"enum": [1], "type": "string"}), ".json_schema.properties.v", "no value is what all"),
        (value({"enum": [1], "minimum": 2}), ".json_schema.properties.v.minimum", "not served next to"),
        (value({"enum": []}), ".json_schema.properties.v.enum", "a list that is not empty"),
        (value({"$ref": "#/x"}), ".json_schema.properties.v.$ref", "is not in the schema"),
        (value({"$ref": "other"}), ".json_schema.properties.v.$ref", "is not in the schema"),
        (value({"$ref": "#/properties/v"}), ".json_schema.properties.v", "refers to itself"),
        (value({"anyOf": [{}], "type": "string"}), ".json_schema.properties.v.anyOf", "not served here"),
        (
            value({"anyOf": [{"enum": ["a"]}, {"type": "array"}]}),
            ".json_schema.properties.v",
            "both would look the same",
        ),
        (value(LIST, "cohere_xml", **{"$defs": {"L": LIST}}), ".json_schema.properties.v", "refers to itself"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_place(form: Any, place: str, text: str) -> None:
    request = ChatRequest(
        messages=[Message("user", "hi")],
        structured_outputs={"structural_tag": {"type": "structural_tag", "format": form}},
    )
    with pytest.raises(BadRequest, match=text) as found:
        demand(request)
    assert re.sub(r"(\.items)+$", "", found.value.param or "") == f"structured_outputs.structural_tag.format{place}"
