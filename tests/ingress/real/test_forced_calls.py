"""Answers that have to call tools, by the OpenAI client, against a mocker, which says noise in the form asked for."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from .test_structured import mocker

UNIT = {"type": "string", "enum": ["celsius", "kelvin"]}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"$ref": "#/$defs/Unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"Unit": UNIT},
}
SUM = {
    "type": "object",
    "properties": {"left": {"$ref": "#/definitions/Unit"}, "more": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["left", "more"],
    "additionalProperties": False,
    "definitions": {"Unit": {"type": "integer"}},
}


def function(name: str, parameters: Any = None) -> Any:
    return {"type": "function", "function": {"name": name} | ({"parameters": parameters} if parameters else {})}


TOOLS = [function("weather", WEATHER), function("sum", SUM), function("now")]


async def fill(house: Any) -> None:
    await house.start()
    await house.worker(mocker, reasoning_parser="basic")
    await house.worker(name="echo", tool_call_parser="hermes")
    await house.worker(mocker, name="listed", tool_call_parser="jamba")


@pytest.fixture
async def client(house: Any, serve: Any, until: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    await fill(house)
    await until(lambda: len(house.processor.cards) == 3)
    url = await serve()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused") as made:
        yield made


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "sample", "messages": [{"role": "user", "content": "Do it."}], "tools": TOOLS, **fields}


async def calls(client: openai.AsyncOpenAI, **fields: Any) -> list[tuple[str, Any]]:
    """The calls of an answer that is nothing else, the same streamed."""
    [choice] = (await client.chat.completions.create(**asked(**fields))).choices
    assert (choice.message.content or "", choice.finish_reason) == ("", "tool_calls")
    found = [
        (call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    ]
    streamed: list[list[str]] = []
    async for chunk in await client.chat.completions.create(**asked(**fields), stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            if call.function.name:
                streamed.append([call.function.name, ""])
            streamed[call.index][1] += call.function.arguments or ""
    assert [tuple(one) for one in streamed] == found
    return [(name, json.loads(arguments)) for name, arguments in found]


def fits(name: str, arguments: Any) -> bool:
    if name == "weather":
        return arguments.keys() == {"city", "unit"} and arguments["unit"] in UNIT["enum"]
    if name == "sum":
        more = arguments["more"]
        return isinstance(arguments["left"], int) and (more is None or fits("sum", more))
    return name == "now" and isinstance(arguments, dict)


async def test_some_call_has_to_come(client: openai.AsyncOpenAI) -> None:
    found = [await calls(client, tool_choice="required", seed=seed) for seed in range(8)]
    assert all(one and all(fits(*call) for call in one) for one in found)
    assert {name for one in found for name, _ in one} == {"weather", "sum", "now"}
    # The mocker ends as soon as it may: only in a format with a marker after all calls it says more than one.
    listed = [await calls(client, model="listed", tool_choice="required", seed=seed) for seed in range(8)]
    assert all(all(fits(*call) for call in one) for one in listed)
    assert any(len(one) > 1 for one in listed)


async def test_not_more_than_one(client: openai.AsyncOpenAI) -> None:
    for seed in range(4):
        found = await calls(client, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert [fits(*call) for call in found] == [True]


@pytest.mark.parametrize("name", ["weather", "sum", "now"])
async def test_one_of_that_name(client: openai.AsyncOpenAI, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    form = {"type": "json_object"}
    found = await calls(client, tool_choice=choice, response_format=form, seed=1)  # the form is of a later answer
    assert [(called, fits(called, arguments)) for called, arguments in found] == [(name, True)]


async def test_a_prompt_of_ids_is_no_way_around(client: openai.AsyncOpenAI) -> None:
    more = {"nvext": {"token_data": [7, 8, 9]}}
    assert all(fits(*call) for call in await calls(client, tool_choice="required", extra_body=more))
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**asked(tools=[{"type": "function"}]), extra_body=more)
    assert caught.value.param == "tools[0]"


@pytest.mark.parametrize("most", [1, 3, 12, 20, 24])
async def test_an_answer_that_is_cut_off_shows_what_there_is(client: openai.AsyncOpenAI, most: int) -> None:
    fields: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 2}
    [whole] = (await client.chat.completions.create(**asked(**fields))).choices
    [call] = whole.message.tool_calls or ()
    assert call.type == "function"
    [choice] = (await client.chat.completions.create(**asked(**fields, max_tokens=most))).choices
    assert choice.finish_reason == "length"
    shown = choice.message.content or ""
    for cut in choice.message.tool_calls or ():
        assert cut.type == "function"
        assert cut.function.name == call.function.name
        assert call.function.arguments.startswith(cut.function.arguments)
        shown += cut.function.name
    assert shown
    if not choice.message.tool_calls:
        assert shown.lstrip()[0] in "<{", "calls come in the model's own format"
    streamed = ""
    async for chunk in await client.chat.completions.create(**asked(**fields, max_tokens=most), stream=True):
        streamed += chunk.choices[0].delta.content or ""
        for one in chunk.choices[0].delta.tool_calls or ():
            assert one.function is not None
            streamed += one.function.name or ""
    assert streamed == shown


@pytest.mark.parametrize(
    ("parameters", "param", "text"),
    [
        ({"properties": {"a": {"not": {}}}}, "tools[3].function.parameters.properties.a", "not"),
        ({"$ref": "#/$defs/none"}, "tools[3].function.parameters", "none"),
        ("{}", "tools[3].function.parameters", "object"),
        ({"enum": ["x" * 70_000]}, "tools[3].function.parameters", "65536"),
    ],
)
async def test_a_tool_that_cannot_be_had_is_named(
    refusing: openai.AsyncOpenAI, parameters: Any, param: str, text: str
) -> None:
    tools = [*TOOLS, function("wrong", parameters)]
    with pytest.raises(openai.BadRequestError) as caught:
        await refusing.chat.completions.create(**asked(tools=tools, tool_choice="required"))
    assert caught.value.param == param
    assert text in str(caught.value)


async def test_an_engine_without_grammars_is_asked_only(
    client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        body = asked(tool_choice="required", max_tokens=4) | {"model": "echo"}
        raw = await client.chat.completions.with_raw_response.create(**body)
        assert raw.headers["x-dynamod-not-enforced"] == "tool_choice"
        assert raw.parse().choices[0].message.content
    for other in (asked(tool_choice="required", max_tokens=40), body | {"tool_choice": "auto"}):
        raw = await client.chat.completions.with_raw_response.create(**other)
        assert "x-dynamod-not-enforced" not in raw.headers
    said = [one.getMessage() for one in caplog.records if "not enforced" in one.getMessage()]
    assert len(said) == 1
    assert "model echo" in said[0]


async def test_calls_that_cannot_be_enforced_are_refused_by_a_setting(house: Any, serve: Any, until: Any) -> None:
    await fill(house)
    await until(lambda: len(house.processor.cards) == 3)
    url = await serve(unenforced_tool_choice="refuse")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused") as client:
        with pytest.raises(openai.BadRequestError, match="cannot be made to call a tool") as caught:
            await client.chat.completions.create(**asked(tool_choice="required") | {"model": "echo"})
        assert caught.value.param == "tool_choice"
        assert await calls(client, tool_choice="required", max_tokens=200)
