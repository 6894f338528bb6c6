"""Forms of answers with the real mistral.rs behind the whole frontend: what it is told, and what is refused."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from dynamod.engine.mistralrs import MistralRs

pytestmark = pytest.mark.engine

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"}, "count": {"enum": [1, 2]}},
    "required": ["city", "count"],
}
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": CITY}}]


@pytest.fixture
async def client(house: Any, serve: Any, until: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    await house.start()
    await house.worker(MistralRs)
    await house.worker(MistralRs, name="thinks", reasoning_parser="basic")
    await house.worker(MistralRs, name="begun", reasoning_parser="deepseek_r1")
    await until(lambda: len(house.processor.cards) == 3)
    url = await serve()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def said(text: str = "What is the capital of France?", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "sample", "messages": messages, "temperature": 0, "max_tokens": 300, **fields}


async def test_json_by_a_schema_streamed_or_not(client: openai.AsyncOpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    whole = await client.chat.completions.create(**said(), response_format=form)
    text = whole.choices[0].message.content or ""
    assert json.loads(text).keys() == {"city", "count"}
    assert whole.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(**said(), response_format=form, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == text


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"regex": "[a-z]{2}@[a-z]{2}"}}, "[a-z]{2}@[a-z]{2}"),
        ({"guided_regex": " [0-9]{4}"}, " [0-9]{4}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"nvext": {"guided_choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_grammar": 'root ::= ("a" | "b") "c"'}, "[ab]c"),
        ({"grammar": 'start: "a" "c"'}, "ac"),
    ],
)
async def test_other_forms_of_both_routes(client: openai.AsyncOpenAI, fields: dict[str, Any], form: str) -> None:
    chat = await client.chat.completions.create(**said(), extra_body=fields)
    assert re.fullmatch(form, chat.choices[0].message.content or "")
    texts = await client.completions.create(model="sample", prompt="An order:", extra_body=fields, max_tokens=100)
    assert re.fullmatch(form, texts.choices[0].text)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_calls_that_have_to_come(client: openai.AsyncOpenAI, choice: Any) -> None:
    fields = said(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    answer = await client.chat.completions.create(**fields)
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "look"
    assert json.loads(call.function.arguments).keys() == {"city", "count"}
    assert not answer.choices[0].message.content


async def test_a_structural_tag(client: openai.AsyncOpenAI) -> None:
    inner = {"type": "json_schema", "json_schema": CITY}
    tag = {"type": "tag", "begin": "<city>", "content": inner, "end": "</city>"}
    form: Any = {"type": "structural_tag", "format": tag}
    answer = await client.chat.completions.create(**said(), response_format=form)
    text = answer.choices[0].message.content or ""
    assert text.startswith("<city>")
    assert json.loads(text.removeprefix("<city>").removesuffix("</city>")).keys() == {"city", "count"}


async def test_free_text_and_parameters_between_tags(client: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"size": {"enum": ["small", 7]}, "n": {"type": "integer", "maximum": 9}}}
    inner = {"type": "json_schema", "style": "qwen_xml", "json_schema": {**schema, "required": ["size", "n"]}}
    tag = {"type": "tag", "begin": "<call>", "content": inner, "end": "</call>"}
    free = {"type": "any_text", "max_chars": 40, "excludes": ["Paris", "<"]}
    form: Any = {"type": "structural_tag", "format": {"type": "sequence", "elements": [free, tag]}}
    answer = await client.chat.completions.create(**said(), response_format=form)
    text = answer.choices[0].message.content or ""
    parameters = r"\s*<parameter=size>\s*(small|7)\s*</parameter>\s*<parameter=n>\s*-?[0-9]+\s*</parameter>\s*"
    assert re.fullmatch(rf"(?s)[^<]{{0,40}}<call>{parameters}</call>", text), text
    assert "Paris" not in text


async def test_what_cannot_be_compiled_is_refused_by_its_place(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as found:
        await client.chat.completions.create(**said(), extra_body={"guided_json": {"properties": {"a": {"not": {}}}}})
    assert found.value.param == "guided_json.properties.a"


async def test_a_form_behind_reasoning(client: openai.AsyncOpenAI) -> None:
    """Where the form's words are unlikely the sample model begins the marker instead, and never ends its reasoning."""
    likely = {"guided_choice": ["The capital of France is Paris.", "tea"]}
    answer = await client.chat.completions.create(**said(model="thinks"), extra_body=likely)
    assert answer.choices[0].message.content == likely["guided_choice"][0]
    unlikely = {"guided_choice": ["red", "tea"]}
    thinks = await client.chat.completions.create(**said(model="thinks"), extra_body=unlikely)
    message: Any = thinks.choices[0].message
    assert (message.content or "", thinks.choices[0].finish_reason) == ("", "length")
    assert message.reasoning_content
    off = await client.chat.completions.create(
        **said(model="thinks"), extra_body={**unlikely, "reasoning_effort": "none"}
    )
    assert off.choices[0].message.content in ("red", "tea")


async def test_a_form_behind_reasoning_that_ends(client: openai.AsyncOpenAI) -> None:
    fields = said("Think: what is 2 plus 3?", model="thinks")
    answer = await client.chat.completions.create(**fields, extra_body={"guided_regex": "[0-9] apples"})
    message: Any = answer.choices[0].message
    assert (message.reasoning_content or "").strip() == "2 plus 3 is 5."
    assert message.content == "5 apples"


async def test_reasoning_that_the_format_begins(client: openai.AsyncOpenAI) -> None:
    """The sample model says no closing marker, so its whole answer is reasoning."""
    fields = said(model="begun", max_tokens=5)
    answer = await client.chat.completions.create(**fields, extra_body={"guided_choice": ["red", "tea"]})
    message: Any = answer.choices[0].message
    assert not message.content
    assert message.reasoning_content == "The capital of France"
    assert answer.choices[0].finish_reason == "length"
