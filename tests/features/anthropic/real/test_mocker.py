"""Messages of a mocker: forced calls, a form behind the reasoning, and counts of a cache, by Anthropic's SDK."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from tests.ingress.real import test_forced_calls as forced
from tests.ingress.real import test_structured_reasoning as reasoned
from tests.ingress.real import test_usage as used
from tests.ingress.real.test_structured import Order
from tests.later import Later

anthropic = Later("anthropic")
Open = Callable[[Callable[[Any], Awaitable[None]]], Awaitable[Any]]


@pytest.fixture
async def opened(house: Any, serve: Any, until: Any) -> AsyncIterator[Open]:
    """`opened(fill)`: a client at a frontend whose processor and workers `fill(house)` starts."""
    async with AsyncExitStack() as stack:

        async def client(fill: Callable[[Any], Awaitable[None]]) -> Any:
            await fill(house)
            await until(lambda: len(house.processor.cards) == len(house.members))
            made = anthropic.AsyncAnthropic(base_url=await serve(), api_key="unused", max_retries=0)
            return await stack.enter_async_context(made)

        yield client


@pytest.mark.parametrize("most", [1, 12, 24, 40])
async def test_clients_get_what_there_is_of_forced_calls(opened: Open, most: int) -> None:
    client = await opened(forced.fill)
    tools = [{"name": "weather", "input_schema": forced.WEATHER}]
    messages: Any = [{"role": "user", "content": "Do it."}]
    fields: dict[str, Any] = {"tools": tools, "tool_choice": {"type": "tool", "name": "weather"}}
    whole = await client.messages.create(model="sample", max_tokens=most, messages=messages, **fields)
    async with client.messages.stream(model="sample", max_tokens=most, messages=messages, **fields) as stream:
        streamed = await stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason
    assert whole.stop_reason in ("max_tokens", "tool_use")
    assert [block.model_dump(exclude={"id"}) for block in whole.content] == [
        block.model_dump(exclude={"id"}) for block in streamed.content
    ]
    assert whole.content


async def test_a_form_begins_behind_the_reasoning(opened: Open) -> None:
    client = await opened(reasoned.fill)
    asked: Any = {"model": "sample", "max_tokens": 1000, "messages": [{"role": "user", "content": "An order."}]}
    message = await client.messages.parse(**asked, output_format=Order)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert isinstance(message.parsed_output, Order)


async def test_cached_tokens(opened: Open) -> None:
    client = await opened(used.fill)
    messages: Any = [{"role": "user", "content": used.PROMPT}]
    async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="unused") as other:
        first = (await used.post(other, "/chat/completions", messages=messages, max_tokens=2))["usage"]
        message = (await used.post(other, "/messages", messages=messages, max_tokens=2))["usage"]
    assert message["cache_read_input_tokens"] == used.expected(first["prompt_tokens"])
    assert message["input_tokens"] + message["cache_read_input_tokens"] == first["prompt_tokens"]


async def test_a_streamed_message_begins_with_what_was_cached(opened: Open) -> None:
    client = await opened(used.fill)
    messages: Any = [{"role": "user", "content": used.PROMPT}]
    for read in (0, None):
        stream = await client.messages.create(model="sample", messages=messages, max_tokens=2, stream=True)
        events = [event async for event in stream]
        found = next(event for event in events if event.type == "message_start").message.usage
        read = used.expected(found.input_tokens + (found.cache_read_input_tokens or 0)) if read is None else read
        assert found.cache_read_input_tokens == read
