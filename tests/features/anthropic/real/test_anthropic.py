"""Anthropic's SDK against the real stack: the echo engine says what the test wants it to."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dynamod.message import tokens
from tests.later import Later

anthropic = Later("anthropic")

TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = CALL.replace("Paris", "Rome")
RAW = {"nvext": {"use_raw_prompt": True}}
ORDER = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")

Ask = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
async def client(house: Any, serve: Any, words: Any, until: Any) -> AsyncIterator[Any]:
    await house.start()
    await house.worker(words.Seen, tool_call_parser="hermes", reasoning_parser="basic")
    await until(lambda: house.processor.cards)
    url = await serve(api_keys="one")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="one", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(client: Any) -> Ask:
    """`ask(text)`: the message of a model that says this text, streamed and in one piece."""

    async def ask(text: str, **fields: Any) -> dict[str, Any]:
        body = {"model": "sample", "max_tokens": 2000, "messages": [{"role": "user", "content": text}]} | fields
        whole = plain(await client.messages.create(**body, extra_body=RAW))
        async with client.messages.stream(**body, extra_body=RAW) as stream:
            events = [event async for event in stream]
            streamed = plain(await stream.get_final_message())
        assert streamed == whole, "streamed and in one piece it is the same"
        in_order([event for event in events if event.type in (*ORDER, "message_stop")])
        return whole

    return ask


def plain(message: Any) -> dict[str, Any]:
    """A message without its id, and without the ids of calls, of which each is another."""
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "sample")
    assert message.usage.input_tokens > 0
    found = message.model_dump(exclude_none=True)
    ids = [block.pop("id") for block in found["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    signatures = [block.pop("signature") for block in found["content"] if block["type"] == "thinking"]
    assert all(signatures)
    kept = ("content", "stop_reason", "stop_sequence", "usage")
    return {name: value for name, value in found.items() if name in kept}


def prompt_of(house: Any) -> str:
    """What the engine has been asked last."""
    found: str = house.processor.model("sample").tokenizer.decode(
        tokens.unpack(house.members[0].engine.requests[-1].token_ids), skip_special=False
    )
    return found


def in_order(events: list[Any]) -> None:
    """message_start, the blocks one after the other, message_delta, message_stop."""
    names = [event.type for event in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    block = -1
    open_ = False
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert not open_
            block, open_ = block + 1, True
        assert open_
        assert event.index == block
        open_ = event.type != "content_block_stop"
    assert not open_


async def test_text(ask: Ask) -> None:
    message = await ask("Hello there")
    assert message["content"] == [{"type": "text", "text": "Hello there"}]
    assert message["stop_reason"] == "end_turn"
    assert "stop_sequence" not in message
    assert message["usage"]["output_tokens"] > 0


async def test_reasoning_text_and_calls_in_order(ask: Ask) -> None:
    message = await ask(f"<think>Which city?</think>I look.{CALL}{OTHER}", tools=TOOLS)
    thinking = {"type": "thinking", "thinking": "Which city?"}
    calls = [{"type": "tool_use", "name": "weather", "input": {"city": city}} for city in ("Paris", "Rome")]
    assert message["content"] == [thinking, {"type": "text", "text": "I look."}, *calls]
    assert message["stop_reason"] == "tool_use"
    one = {"type": "auto", "disable_parallel_tool_use": True}
    message = await ask(CALL + OTHER, tools=TOOLS, tool_choice=one)
    assert message["content"] == calls[:1]
    message = await ask(CALL, tools=TOOLS, tool_choice={"type": "none"})
    assert message["content"] == [{"type": "text", "text": CALL}]


async def test_why_it_ends(ask: Ask) -> None:
    message = await ask("one two three four", max_tokens=2)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 2)
    message = await ask("one two three four", stop_sequences=["no", "three"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "three")
    assert message["content"] == [{"type": "text", "text": "one two "}]


async def test_the_tool_round_trip(client: Any, house: Any) -> None:
    asked = [{"role": "user", "content": f"<think>Hm.</think>{CALL}"}]
    body: dict[str, Any] = {"model": "sample", "max_tokens": 500, "tools": TOOLS}
    first = await client.messages.create(**body, messages=asked, extra_body=RAW)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain"}]}
    turns = [
        *asked,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}, result]},
    ]
    second = await client.messages.create(**body, messages=turns)
    prompt = prompt_of(house)
    assert f"<|im_start|>assistant\n{CALL}<|im_end|>" in prompt
    assert prompt.endswith(
        "<tool_response>\nRain\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    )
    counted = await client.messages.count_tokens(model="sample", messages=turns, tools=TOOLS)
    assert counted.input_tokens == second.usage.input_tokens


async def test_the_line_of_agents_that_differs_per_session(client: Any) -> None:
    body: dict[str, Any] = {"model": "sample", "messages": [{"role": "user", "content": "Hi"}]}
    line = "x-anthropic-billing-header: cc_version=2; cch=1234;"
    answer = await client.beta.messages.create(**body, system="You help.", max_tokens=5, betas=["any-2026-01-01"])
    for system in (
        f"{line}\nYou help.",
        [{"type": "text", "text": line}, {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
    ):
        counted = await client.messages.count_tokens(**body, system=system)
        assert counted.input_tokens == answer.usage.input_tokens


async def test_an_answer_that_is_begun_by_the_client(client: Any, house: Any) -> None:
    turns = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "The best answer is ("}]
    await client.messages.create(model="sample", max_tokens=100, messages=turns)
    assert prompt_of(house).endswith("<|im_start|>assistant\nThe best answer is (")


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_classes_of_the_sdk(client: Any, stream: bool) -> None:
    good: dict[str, Any] = {"model": "sample", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    for error, kind, words, change in (
        (anthropic.NotFoundError, "not_found_error", "does not exist", {"model": "other"}),
        (anthropic.BadRequestError, "invalid_request_error", "images are not supported", {"messages": [
            {"role": "user", "content": [image]}]}),
        (anthropic.BadRequestError, "invalid_request_error", "`max_tokens` is 0", {"max_tokens": 0}),
        (anthropic.BadRequestError, "invalid_request_error", "prompt is too long", {"messages": [
            {"role": "user", "content": "long " * 50_000}]}),
        (anthropic.BadRequestError, "invalid_request_error", "tool_choice", {"tool_choice": {"type": "any"}}),
        (anthropic.AuthenticationError, "authentication_error", "Incorrect API key", {}),
    ):  # fmt: skip
        asked = client if change else client.with_options(api_key="wrong")
        with pytest.raises(error, match=words) as raised:
            await asked.messages.create(**(good | change), stream=stream)
        body = raised.value.body
        assert isinstance(body, dict)
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert body["request_id"] == raised.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        await client.get("/v1/nothing", cast_to=object)


async def test_a_bearer_token_is_a_key_too(client: Any) -> None:
    url = str(client.base_url)
    async with anthropic.AsyncAnthropic(base_url=url, auth_token="one", api_key=None, max_retries=0) as other:
        assert (await other.models.list()).data[0].id == "sample"
        turn: Any = {"role": "user", "content": "x"}
        assert (await other.messages.count_tokens(model="sample", messages=[turn])).input_tokens > 0


async def test_a_loop_of_tools_has_the_whole_conversation(client: Any) -> None:
    """The SDK's runner asks the server to hold the conversation; it sends all of it where that is refused its way."""
    bodies: list[Any] = []

    async def keep(request: Any) -> None:
        bodies.append(json.loads(request.content))

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """The weather of a city."""
        return f"Rain in {city}"

    asked: Any = {"model": "sample", "max_tokens": 500, "messages": [{"role": "user", "content": CALL}]}
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.beta.messages.create(**asked, thread={"type": "create"})
    body: Any = raised.value.body
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}
    async with anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [keep]}) as http:
        mine = client.with_options(http_client=http)
        runner = mine.beta.messages.tool_runner(**asked, tools=[weather], max_iterations=2, extra_body=RAW)
        assert len([turn async for turn in runner]) == 2
    assert ["thread" in body for body in bodies] == [True, False, False]
    question, call, result = bodies[-1]["messages"]
    assert (question["content"], call["content"][0]["input"]) == (CALL, {"city": "Paris"})
    assert result["content"][0]["content"] == "Rain in Paris"


async def test_the_list_of_models_has_two_forms(client: Any, house: Any) -> None:
    found = [model async for model in client.models.list()]
    assert [(model.type, model.id, model.display_name) for model in found] == [("model", "sample", "sample")]
    assert found[0].created_at.year > 2020
    assert found[0].model_dump()["lifecycle"] == "active"
    assert (await client.models.retrieve("sample")).id == "sample"
    for path in ("/v1/models/other", "/v1/complete", "/v1/messages/nope"):
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.get(path, cast_to=object)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
        assert caught.value.response.headers["request-id"] == body["request_id"]
    assert [model async for model in client.models.list(after_id="sample")] == []
    with pytest.raises(anthropic.BadRequestError):
        await client.models.list(after_id="other")
    plain = await client.get("/v1/models", cast_to=object, options={"headers": {"anthropic-version": anthropic.Omit()}})
    assert plain["object"] == "list"


async def test_a_container_is_refused(client: Any) -> None:
    body = {"model": "sample", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(anthropic.BadRequestError, match="container"):
        await client.messages.create(**body, extra_body={"container": "x"})
    await client.messages.create(**body, service_tier="standard_only")
    with pytest.raises(anthropic.BadRequestError, match="service_tier"):
        await client.messages.create(**body, extra_body={"service_tier": "bogus"})


async def test_input_comes_in_pieces(client: Any) -> None:
    long = CALL.replace("Paris", "x " * 50)
    body = {"model": "sample", "max_tokens": 2000, "tools": TOOLS, "extra_body": RAW}
    async with client.messages.stream(messages=[{"role": "user", "content": long}], **body) as stream:
        events = [event async for event in stream]
        message = await stream.get_final_message()
    pieces = [
        event.delta.partial_json
        for event in events
        if getattr(getattr(event, "delta", None), "type", "") == "input_json_delta"
    ]
    assert len(pieces) > 50
    assert json.loads("".join(pieces)) == message.content[0].input == {"city": "x " * 50}


async def test_a_broken_call_is_text_where_its_input_has_to_be_an_object(client: Any) -> None:
    broken = CALL.replace('"city"', "city")
    body = {"model": "sample", "max_tokens": 2000, "tools": TOOLS, "messages": [{"role": "user", "content": broken}]}
    message = await client.messages.create(**body, extra_body=RAW)
    assert [(one.type, one.text) for one in message.content] == [
        ("text", broken.removeprefix("<tool_call>\n").removesuffix("</tool_call>"))
    ]
    raw = await client.messages.create(**body, extra_body=RAW, stream=True)
    pieces = [event.delta.partial_json async for event in raw if event.type == "content_block_delta"]
    assert "".join(pieces) == '{city: "Paris"}'
