"""Answers that keep to a form behind the model's reasoning: a mocker whose prompt has begun to reason."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from .test_structured import Order, mocker, said

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


async def fill(house: Any) -> None:
    await house.start()
    await house.worker(mocker, reasoning_parser="deepseek_r1", tool_call_parser="hermes")


@pytest.fixture
async def client(house: Any, serve: Any, until: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    await fill(house)
    await until(lambda: house.processor.cards)
    url = await serve()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


async def test_the_form_begins_behind_the_reasoning(client: openai.AsyncOpenAI) -> None:
    for seed in range(4):
        answer = await client.chat.completions.parse(**said(seed=seed), response_format=Order)
        [choice] = answer.choices
        assert (choice.finish_reason, type(choice.message.parsed)) == ("stop", Order)
        whole: Any = choice.message
        assert len(whole.reasoning_content) > 5
        assert "</think>" not in whole.reasoning_content
        assert whole.content.startswith("{")
        async with client.chat.completions.stream(**said(seed=seed), response_format=Order) as stream:
            pieces = [chunk.chunk.choices[0].delta async for chunk in stream if chunk.type == "chunk"]
        assert "".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces) == whole.reasoning_content
        assert "".join(piece.content or "" for piece in pieces) == whole.content


async def test_a_prompt_that_has_ended_the_reasoning(client: openai.AsyncOpenAI) -> None:
    raw = {"nvext": {"use_raw_prompt": True}}
    answer = await client.chat.completions.parse(**said("x\n</think>\n\n"), response_format=Order, extra_body=raw)
    assert isinstance(answer.choices[0].message.parsed, Order)
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    fields: Any = {"continue_final_message": True, "add_generation_prompt": False}
    begun: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Yes: "}]
    answer = await client.chat.completions.parse(
        model="sample", messages=begun, response_format=Order, extra_body=fields
    )
    assert isinstance(answer.choices[0].message.parsed, Order)
    assert not hasattr(answer.choices[0].message, "reasoning_content")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_calls_come_behind_the_reasoning(client: openai.AsyncOpenAI, choice: Any) -> None:
    answer = await client.chat.completions.create(**said(tools=TOOLS, tool_choice=choice, seed=1))
    message: Any = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content or "") == ("tool_calls", "")
    assert len(message.reasoning_content) > 5
    for call in message.tool_calls:
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments).keys() == {"city"}


async def test_reasoning_that_is_cut_off_is_no_answer(client: openai.AsyncOpenAI) -> None:
    [choice] = (
        await client.chat.completions.create(**said(max_tokens=5), response_format={"type": "json_object"})
    ).choices
    message: Any = choice.message
    assert (choice.finish_reason, message.content) == ("length", "")
    assert message.reasoning_content
