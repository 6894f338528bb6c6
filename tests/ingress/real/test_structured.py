"""Answers that keep to a form, by the OpenAI client, against a mocker behind the whole frontend."""

import json
import re
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Item(BaseModel):
    title: str
    count: int
    size: Size
    price: float | None


class Order(BaseModel):
    customer: str
    items: list[Item]
    paid: bool


def mocker(options: EngineOptions, spawn: Spawn) -> Mocker:
    options.arguments.update(speedup_ratio=0, num_gpu_blocks=200, block_size=16)
    return Mocker(options, spawn)


async def fill(house: Any) -> None:
    await house.start()
    await house.worker(mocker)
    await house.worker(name="echo")
    await house.worker(mocker, name="thinks", reasoning_parser="basic", tool_call_parser="hermes")


@pytest.fixture
async def client(house: Any, serve: Any, until: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    await fill(house)
    await until(lambda: len(house.processor.cards) == 3)
    url = await serve()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused") as made:
        yield made


def said(text: str = "An order, please.", **fields: Any) -> dict[str, Any]:
    return {"model": "sample", "messages": [{"role": "user", "content": text}], **fields}


async def test_parse_with_a_pydantic_model(client: openai.AsyncOpenAI) -> None:
    orders = []
    for seed in range(8):
        answer = await client.chat.completions.parse(**said(seed=seed), response_format=Order)
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Order)
        orders.append(choice.message.parsed)
    assert len({order.model_dump_json() for order in orders}) > 4
    assert any(order.items for order in orders)


async def test_a_stream_with_a_pydantic_model(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.parse(**said(seed=3), response_format=Order)
    async with client.chat.completions.stream(**said(seed=3), response_format=Order) as stream:
        pieces = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert len(pieces) > 5
    assert "".join(pieces) == whole.choices[0].message.content
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed


async def test_several_choices(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(**said(n=3), response_format=Order)
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert all(choice.message.parsed for choice in answer.choices)


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"regex": "[a-z]+@[a-z]+"}}, "[a-z]+@[a-z]+"),
        ({"guided_regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"nvext": {"guided_choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_grammar": 'root ::= ("a" | "b")+ "c"'}, "[ab]+c"),
        ({"grammar": 'start: "a"+ "c"'}, "a+c"),
    ],
)
async def test_other_forms_of_both_routes(client: openai.AsyncOpenAI, fields: dict[str, Any], form: str) -> None:
    chat = await client.chat.completions.create(**said(), extra_body=fields)
    assert re.fullmatch(form, chat.choices[0].message.content or "")
    texts = await client.completions.create(model="sample", prompt="An order:", extra_body=fields, max_tokens=100)
    assert re.fullmatch(form, texts.choices[0].text)


async def test_json_of_any_kind(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**said(), response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


async def test_with_a_form_there_is_no_reasoning_and_no_call(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    form = {"guided_choice": ['<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>']}
    answer = await client.chat.completions.create(**said(tools=tools) | {"model": "thinks"}, extra_body=form)
    assert answer.choices[0].message.content == form["guided_choice"][0]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"items": {"not": {}}}},
                }
            },
            "response_format.json_schema.schema.items",
            "not",
        ),
        ({"guided_json": {"type": "array", "items": {"type": "intger"}}}, "guided_json.items", "intger"),
        ({"nvext": {"guided_regex": "(a"}}, "nvext.guided_regex", "unclosed"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "`guided_regex` and `guided_choice`"),
        ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json", "65536"),
    ],
)
async def test_what_cannot_be_had_is_refused_with_its_place(
    refusing: openai.AsyncOpenAI, fields: dict[str, Any], param: str, text: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await refusing.chat.completions.create(**said(), extra_body=fields)
    assert caught.value.param == param
    assert text in str(caught.value)


async def test_an_engine_without_grammars_refuses(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**said() | {"model": "echo"}, extra_body={"guided_regex": "a"})
    assert (caught.value.param, caught.value.code) == ("guided_regex", "unsupported_parameter")


async def test_a_worker_that_dies_in_the_middle(client: openai.AsyncOpenAI, house: Any, until: Any) -> None:
    """Its answer goes on at another worker as if nothing had been."""

    def slow(options: EngineOptions, spawn: Spawn) -> Mocker:
        options.arguments.update(num_gpu_blocks=200, block_size=16, speedup_ratio=4)
        return Mocker(options, spawn)

    for _ in range(2):
        await house.worker(slow, name="pair")
    await until(lambda: "pair" in house.processor.cards)
    members = house.members[-2:]
    asked = {**said(seed=5), "model": "pair", "extra_body": {"guided_regex": "([a-z]{3,6} ){30}end"}}
    whole = (await client.chat.completions.create(**asked)).choices[0].message.content
    text, killed = "", False
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
        if len(text) > 30 and not killed:
            killed = True
            [serving] = [member for member in members if member.open]
            await house.die(serving)
    assert killed
    assert text == whole
    assert text.endswith(" end")


TAG: dict[str, Any] = {
    "structures": [{"begin": "<order>", "schema": Order.model_json_schema(), "end": "</order>"}],
    "triggers": ["<order>"],
}


async def test_a_structural_tag(client: openai.AsyncOpenAI) -> None:
    """What is between the strings keeps to the schema; what is in front of them is any text."""
    inner = {"type": "json_schema", "json_schema": Order.model_json_schema()}
    begun = {"type": "tag", "begin": "<order>", "content": inner, "end": "</order>"}
    form: Any = {"type": "structural_tag", "format": begun}
    answer = await client.chat.completions.create(**said(), response_format=form)
    text = answer.choices[0].message.content or ""
    assert text.startswith("<order>")
    assert text.endswith("</order>")
    Order.model_validate_json(text.removeprefix("<order>").removesuffix("</order>"))
    free = await client.chat.completions.create(
        **said(max_tokens=30), extra_body={"response_format": {"type": "structural_tag", **TAG}}
    )
    assert free.choices[0].message.content


async def test_a_schema_in_a_structural_tag_is_refused_by_its_place(client: openai.AsyncOpenAI) -> None:
    wrong = {"begin": "<x>", "schema": {"properties": {"a": {"not": {}}}}, "end": "</x>"}
    tag = {"type": "structural_tag", "structures": [*TAG["structures"], wrong], "triggers": ["<order>", "<x>"]}
    with pytest.raises(openai.BadRequestError) as found:
        await client.chat.completions.create(**said(), extra_body={"structured_outputs": {"structural_tag": tag}})
    assert found.value.param == "structured_outputs.structural_tag.structures[1].schema.properties.a"


FREE: Any = {"type": "any_text", "max_chars": 12, "excludes": ["e", "<"]}
PARAMETERS: Any = {
    "type": "json_schema",
    "style": "qwen_xml",
    "json_schema": {
        "type": "object",
        "properties": {
            "size": {"enum": ["small", "large", 7]},
            "name": {"type": "string", "pattern": "^[a-z]{1,5}$"},
            "count": {"type": "integer", "minimum": 10, "maximum": 99},
        },
        "required": ["size", "count"],
    },
}
CALLED: Any = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [FREE, {"type": "tag", "begin": "<call>", "content": PARAMETERS, "end": "</call>"}],
    },
}
CALL = (
    r"(?s)[^e<]{0,12}<call>\s*<parameter=size>\s*(small|large|7)\s*</parameter>\s*"
    r"(<parameter=name>\s*[a-z]{1,5}\s*</parameter>\s*)?<parameter=count>\s*[1-9][0-9]\s*</parameter>\s*</call>"
)


async def test_free_text_and_parameters_between_tags(client: openai.AsyncOpenAI) -> None:
    for seed in range(8):
        form: Any = CALLED
        answer = await client.chat.completions.create(**said(seed=seed), response_format=form)
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        assert re.fullmatch(CALL, choice.message.content or ""), choice.message.content


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"type": "any_tokens"}, "type"),
        ({**PARAMETERS, "style": "kimi_k3_xml"}, "style"),
        (
            {**PARAMETERS, "json_schema": {"properties": {"a": {"type": "string", "pattern": "("}}}},
            "json_schema.properties.a.pattern",
        ),
        (
            {**PARAMETERS, "json_schema": {"properties": {"a": {"type": "array", "items": {"not": {}}}}}},
            "json_schema.properties.a.items",
        ),
    ],
)
async def test_what_a_tag_cannot_say_is_refused_by_its_place(refusing: Any, wrong: Any, place: str) -> None:
    form: Any = {"type": "structural_tag", "format": wrong}
    with pytest.raises(openai.BadRequestError) as found:
        await refusing.chat.completions.create(**said(), response_format=form)
    assert found.value.param == f"response_format.format.{place}"


async def test_a_choice_of_3000_texts(client: openai.AsyncOpenAI) -> None:
    choices = [f"answer {number}" for number in range(3000)]
    answer = await client.chat.completions.create(**said(seed=1), extra_body={"guided_choice": choices})
    assert answer.choices[0].message.content in choices
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"guided_regex": "(a?){500}a{500}"}, "guided_regex"),
        ({"guided_grammar": 'start: s\ns: s s s | s s | "a"\n'}, "guided_grammar"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "regex", "pattern": "(a?){500}a{500}"}}},
            "",
        ),
    ],
    ids=["regex", "ambiguous grammar", "structural tag"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_form_that_cannot_be_followed_is_a_bad_request(
    client: openai.AsyncOpenAI, form: dict[str, Any], param: str, stream: bool
) -> None:
    """No worker is at fault, so it is no 502; and the next request is answered."""
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**said(), stream=stream, extra_body=form)
    assert caught.value.status_code == 400
    assert param in str(caught.value.param)
    assert (await client.chat.completions.create(**said(), max_tokens=3)).choices[0].finish_reason == "length"
