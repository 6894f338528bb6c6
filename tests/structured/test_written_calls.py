"""Forced calls in each format: what the form lets a model write is read as the calls that it says."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dynamod.message.openai import ChatRequest
from dynamod.message.schemas import NO_PARAMETERS
from dynamod.message.worker import Grammar
from dynamod.parsers import Call, ToolSpec, assemble, make_parser, written_calls
from dynamod.parsers.grammars import GRAMMARS, grammar_class
from dynamod.structured.demand import demand
from tests.structured.tagged import keeps

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["celsius", "kelvin"]},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/Place"},
    },
    "required": ["city", "days"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
OPTIONAL = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
TOOLS = [ToolSpec("weather", SCHEMA), ToolSpec("find", OPTIONAL), ToolSpec("now", {"type": "object", "properties": {}})]
WRITTEN = sorted(name for name in GRAMMARS if grammar_class(name).writing is not None)
TEXTS = ["Paris", "a, b", "é (x)"]
PLACE = {"x": 1.5}
VALUES: dict[str, list[Any]] = {
    "city": TEXTS,
    "days": [3, -12],
    "unit": ["kelvin"],
    "exact": [True, False],
    "tags": [[], ["x", "y z"]],
    "place": [PLACE],
    "a": [7],
    "b": TEXTS,
}


def sentence(form: Any, chance: random.Random) -> str:
    """A text of the form."""
    kind = form["type"]
    if kind == "const_string":
        return str(form["value"])
    if kind == "sequence":
        return "".join(sentence(one, chance) for one in form["elements"])
    if kind == "or":
        return sentence(chance.choice(form["elements"]), chance)
    if kind in ("optional", "star"):
        return "".join(
            sentence(form["content"], chance) for _ in range(chance.randrange(2 if kind == "optional" else 3))
        )
    if kind == "tag":
        return f"{form['begin']}{chance.choice(TEXTS)}{form['end']}"
    schema = form["json_schema"]
    if "properties" in schema:
        chosen = [key for key in schema["properties"] if key in schema.get("required", ()) or chance.random() < 0.5]
        return json.dumps({key: chance.choice(VALUES[key]) for key in chosen}, ensure_ascii=False)
    if "enum" in schema:
        return json.dumps(chance.choice(schema["enum"]))
    plain: Any = {"integer": 5, "boolean": True, "array": ["x", "y"], "string": TEXTS[2]}
    return json.dumps(plain.get(schema.get("type"), PLACE), ensure_ascii=False)


def forced(name: str, several: bool) -> tuple[Any, Grammar]:
    form = written_calls(name, TOOLS, (), several=several)
    assert form is not None
    tools = [{"type": "function", "function": {"name": one.name, "parameters": one.parameters}} for one in TOOLS]
    wanted = demand(ChatRequest(messages=[], model="m", tools=tools, tool_choice="required"), form)
    assert wanted is not None
    assert wanted[1].kind == "structural_tag", "the form is not JSON"
    return form, wanted[1]


def sentences(form: Any) -> Iterator[str]:
    for seed in range(15):
        yield sentence(form, random.Random(seed))


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("several", [False, True])
def test_every_text_of_the_form_is_calls(name: str, several: bool) -> None:
    form, grammar = forced(name, several)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    counts = set[int]()
    for text in sentences(form):
        assert keeps(grammar, text), text
        parser = make_parser(name, None, TOOLS, seed="s")
        found = assemble([*parser.feed(text), *parser.finish("stop")])
        calls = [one for one in found if isinstance(one, Call)]
        assert len(calls) == len(found), (text, found)
        counts.add(len(calls))
        for call in calls:
            arguments = json.loads(call.arguments)
            schema = schemas[call.name]
            assert arguments.keys() <= schema["properties"].keys()
            assert arguments.keys() >= set(schema.get("required", ()))
            for key, value in arguments.items():
                kind = schema["properties"][key].get("type", "string" if key == "unit" else "object")
                right: Any = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}[kind]
                assert isinstance(value, right), (text, call)
    assert max(counts) == (3 if several else 1)
    assert min(counts) == 1


@pytest.mark.parametrize("name", WRITTEN)
def test_a_function_without_parameters_is_called_without(name: str) -> None:
    form = written_calls(name, [ToolSpec("now", NO_PARAMETERS)], (), several=False)
    assert form is not None
    text = sentence(form, random.Random(0))
    parser = make_parser(name, None, [ToolSpec("now")], seed="s")
    [call] = assemble([*parser.feed(text), *parser.finish("stop")])
    assert isinstance(call, Call)
    assert (call.name, call.arguments) == ("now", "{}")
