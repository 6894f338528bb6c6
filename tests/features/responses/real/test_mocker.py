"""Responses of a mocker: forced calls, a form behind the reasoning, and counts beside the totals, by OpenAI's SDK."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from tests.ingress.real import test_forced_calls as forced
from tests.ingress.real import test_structured_reasoning as reasoned
from tests.ingress.real import test_usage as used
from tests.ingress.real.test_structured import Order

Open = Callable[[Callable[[Any], Awaitable[None]]], Awaitable[openai.AsyncOpenAI]]


@pytest.fixture
async def opened(house: Any, serve: Any, until: Any) -> AsyncIterator[Open]:
    """`opened(fill)`: a client at a frontend whose processor and workers `fill(house)` starts."""
    async with AsyncExitStack() as stack:

        async def client(fill: Callable[[Any], Awaitable[None]]) -> openai.AsyncOpenAI:
            await fill(house)
            await until(lambda: len(house.processor.cards) == len(house.members))
            made = openai.AsyncOpenAI(base_url=f"{await serve()}/v1", api_key="unused", max_retries=0)
            return await stack.enter_async_context(made)

        yield client


@pytest.mark.parametrize("most", [1, 12, 24])
async def test_clients_get_what_there_is_of_forced_calls(opened: Open, most: int) -> None:
    client = await opened(forced.fill)
    tools: Any = [{"type": "function", "name": "weather", "parameters": forced.WEATHER}]
    fields: dict[str, Any] = {"tools": tools, "tool_choice": "required", "max_output_tokens": most}
    response = await client.responses.create(model="sample", input="Do it.", **fields)
    assert response.status == "incomplete"
    assert response.output


async def test_a_form_begins_behind_the_reasoning(opened: Open) -> None:
    client = await opened(reasoned.fill)
    response = await client.responses.parse(model="sample", input="An order.", text_format=Order)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert isinstance(response.output_parsed, Order)
    assert response.usage
    assert response.usage.output_tokens_details.reasoning_tokens > 5


async def test_cached_tokens(opened: Open) -> None:
    client = await opened(used.fill)
    messages: Any = [{"role": "user", "content": used.PROMPT}]
    first = (await used.post(client, "/chat/completions", messages=messages, max_tokens=2))["usage"]
    response = (await used.post(client, "/responses", input=used.PROMPT, max_output_tokens=2))["usage"]
    assert response["input_tokens_details"]["cached_tokens"] == used.expected(first["prompt_tokens"])


@pytest.mark.parametrize("text", used.THOUGHTS)
async def test_reasoning_tokens(opened: Open, house: Any, text: str) -> None:
    client = await opened(used.fill)
    messages: Any = [{"role": "user", "content": text}]
    raw: Any = {"nvext": {"use_raw_prompt": True}}
    response = await client.responses.create(model="thinks", input=messages, extra_body=raw)
    assert response.usage is not None
    count = used.reasoning(house.backend.model("thinks").tokenizer, text)
    assert response.usage.output_tokens_details.reasoning_tokens == count
