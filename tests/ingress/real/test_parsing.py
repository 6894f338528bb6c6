"""Reasoning and calls of tools in the answers of a token engine: the echo engine says what the test wants it to."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest

TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = CALL.replace("Paris", "Rome")

Ask = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
async def ask(house: Any, serve: Any, until: Any) -> AsyncIterator[Ask]:
    """`ask(text)`: what the choices of an answer are whose model says this text, streamed and in one piece."""
    await house.start()
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "basic"}
    await house.worker(**parsers)
    await house.worker(name="plain", tool_call_parser="none", reasoning_parser="none")
    await house.worker(name="newer", reasoning_parser="of-a-later-version")
    await until(lambda: len(house.processor.cards) == 3)
    url = await serve()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused") as client:

        async def ask(
            text: str, model: str = "sample", *, skip_special: bool | None = None, **fields: Any
        ) -> list[dict[str, Any]]:
            body = {"model": model, "messages": [{"role": "user", "content": text}], "tools": TOOLS} | fields
            more = {"extra_body": {"nvext": {"use_raw_prompt": True}, "skip_special_tokens": skip_special}}
            answer = await client.chat.completions.create(**body, **more)
            whole = [one.model_dump(exclude_none=True) for one in answer.choices]
            found = [{"finish": one["finish_reason"], **plain(one["message"])} for one in whole]
            streamed: list[dict[str, Any]] = [{} for _ in whole]
            async for chunk in await client.chat.completions.create(**body, **more, stream=True):
                for choice in chunk.choices:
                    add(streamed[choice.index], choice.model_dump(exclude_none=True))
            assert streamed == found, "streamed and in one piece it is the same"
            return found

        shown = {
            one.id: one.model_dump(exclude={"id", "object", "created", "owned_by"})
            async for one in client.models.list()
        }
        assert [shown["sample"][name] for name in parsers] == ["hermes", "basic"]
        assert not parsers.keys() & (shown["plain"].keys() | shown["newer"].keys())
        yield ask


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its role, and without the ids of calls, of which each is another."""
    calls = message.pop("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    found = {name: value for name, value in message.items() if value and name != "role"}
    return found | (
        {"calls": [(one["function"]["name"], one["function"]["arguments"]) for one in calls]} if calls else {}
    )


def add(found: dict[str, Any], choice: dict[str, Any]) -> None:
    if choice.get("finish_reason"):
        found["finish"] = choice["finish_reason"]
    for name, value in plain(choice["delta"]).items():
        found[name] = found[name] + value if name in found else value


@pytest.mark.parametrize(
    ("frontend", "card", "expected"),
    [
        ("reasoning_content", "", "reasoning_content"),
        ("reasoning", "", "reasoning"),
        ("reasoning", "reasoning_content", "reasoning_content"),
        ("reasoning_content", "reasoning", "reasoning"),
        ("reasoning", "of-a-later-version", "reasoning"),
    ],
)
async def test_the_field_of_the_reasoning(
    house: Any, serve: Any, until: Any, words: Any, frontend: str, card: str, expected: str
) -> None:
    await house.start()
    await house.worker(reasoning_parser="basic", reasoning_field_name=card)
    text = await house.worker(words.Manual, "text", reasoning_field_name=card)
    await until(lambda: len(house.processor.cards) == 2)
    url = await serve(reasoning_field_name=frontend)
    body = {"messages": [{"role": "user", "content": "<think>Which?</think>It."}], "nvext": {"use_raw_prompt": True}}
    chunk = {"reasoning": "Which?", "reasoning_content": "Which?", "content": None}  # as some servers say it
    async with aiohttp.ClientSession() as session:
        for model in ("sample", "text"):
            for stream in (False, True):
                text.engine.replies.clear()
                asked = session.post(f"{url}/v1/chat/completions", json={**body, "model": model, "stream": stream})
                waiting = asyncio.ensure_future(asked.__aenter__())
                if model == "text":
                    await until(lambda: text.engine.replies)
                    text.engine.replies[0].items(({"choices": [{"delta": chunk}]},))
                    text.engine.replies[0].text("It.", 1, "stop", 1)
                said = await (await waiting).text()
                events = [line[6:] for line in said.splitlines() if line.startswith("data: {")] if stream else [said]
                found = [one.get("delta", one.get("message")) for each in events for one in choices(each)]
                names = {name for one in found for name in one if name.startswith("reasoning")}
                assert names == {expected}
                assert "".join(one.get(expected) or "" for one in found) == "Which?"
                assert "".join(one.get("content") or "" for one in found) == "It."


def choices(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["choices"]
    return found


async def test_a_call(ask: Ask) -> None:
    assert await ask(CALL) == [{"finish": "tool_calls", "calls": [("weather", '{"city": "Paris"}')]}]


async def test_reasoning_text_and_calls_in_order(ask: Ask) -> None:
    text = f"<think>Which city?</think>I look.{CALL}{OTHER}"
    expected = {
        "finish": "tool_calls",
        "reasoning_content": "Which city?",
        "content": "I look.",
        "calls": [("weather", '{"city": "Paris"}'), ("weather", '{"city": "Rome"}')],
    }
    assert await ask(text) == [expected]
    assert await ask(text, n=2) == [expected] * 2
    assert await ask(text, parallel_tool_calls=False) == [expected | {"calls": expected["calls"][:1]}]


async def test_without_tools_the_text_stays(ask: Ask) -> None:
    assert await ask(CALL, tools=None) == [{"finish": "stop", "content": CALL}]
    assert await ask(CALL, tool_choice="none") == [{"finish": "stop", "content": CALL}]
    assert await ask(CALL, model="plain") == [{"finish": "stop", "content": CALL}]
    assert await ask(f"<think>a</think>{CALL}", model="newer") == [
        {"finish": "stop", "content": f"<think>a</think>{CALL}"}
    ]


async def test_a_call_that_is_cut_off_is_dropped(ask: Ask) -> None:
    assert await ask(f"Wait. {CALL}", max_tokens=20) == [{"finish": "length", "content": "Wait. "}]
    cut = CALL[:40].removeprefix("<tool_call>").lstrip()
    assert await ask(f"Wait. {CALL[:40]}") == [{"finish": "stop", "content": f"Wait. {cut}"}]


async def test_a_call_that_is_complete_but_for_its_closing_marker(ask: Ask) -> None:
    calls = [("weather", '{"city": "Paris"}')]
    assert await ask(f"Wait. {CALL}", max_tokens=30) == [{"finish": "length", "content": "Wait. ", "calls": calls}]


async def test_markup_that_is_no_call_is_text(ask: Ask) -> None:
    assert await ask("a <tool_call>none</tool_call> b") == [{"finish": "stop", "content": "a noneb"}]
    assert await ask("1 < 2 <tool") == [{"finish": "stop", "content": "1 < 2 <tool"}]
    assert await ask("x <|im_start|>y", skip_special=True) == [{"finish": "stop", "content": "x y"}]
    assert await ask("x <|im_start|>y") == [{"finish": "stop", "content": "x <|im_start|>y"}], "echo_core's answer"


async def test_stop_strings_see_the_text_of_the_model(ask: Ask) -> None:
    assert await ask(f"{CALL} and more", stop="</tool_call>") == [
        {"finish": "tool_calls", "calls": [("weather", '{"city": "Paris"}')]}
    ]


BROKEN = '<tool_call>\n{"name": "weather", "arguments": {city: "Paris"}}\n</tool_call>'


async def test_a_broken_call_reaches_the_client(ask: Ask) -> None:
    assert await ask(f"So. {BROKEN}") == [
        {"finish": "tool_calls", "content": "So. ", "calls": [("weather", '{city: "Paris"}')]}
    ]
    assert await ask(BROKEN + OTHER) == [
        {"finish": "tool_calls", "calls": [("weather", '{city: "Paris"}'), ("weather", '{"city": "Rome"}')]}
    ]


async def test_the_settings_of_broken_calls_and_of_streams(house: Any, serve: Any, until: Any) -> None:
    await house.start()
    await house.worker(tool_call_parser="hermes")
    await until(lambda: house.processor.cards)
    long = CALL.replace("Paris", "x " * 50)
    body = {"model": "sample", "tools": TOOLS, "extra_body": {"nvext": {"use_raw_prompt": True}}}
    counts, texts = [], []
    for settings in ({}, {"stream_tool_arguments": "chat"}, {"stream_tool_arguments": "chat", **CONTENT}):
        async with openai.AsyncOpenAI(base_url=f"{await serve(**settings)}/v1", api_key="unused") as client:
            said = [{"role": "user", "content": long}]
            chunks = [one async for one in await client.chat.completions.create(messages=said, stream=True, **body)]
            deltas = [one.choices[0].delta.tool_calls[0] for one in chunks if one.choices[0].delta.tool_calls]
            assert [bool(one.id and one.function.name) for one in deltas] == [True] + [False] * (len(deltas) - 1)
            assert json.loads("".join(one.function.arguments for one in deltas)) == {"city": "x " * 50}
            counts.append(len(deltas))
            said = [{"role": "user", "content": BROKEN}]
            answer = (await client.chat.completions.create(messages=said, **body)).choices[0].message
            texts.append((answer.content, len(answer.tool_calls or ())))
    assert counts[0] == counts[2] == 1
    assert counts[1] > 50
    assert texts == [(None, 1), (None, 1), (BROKEN.removeprefix("<tool_call>\n").removesuffix("</tool_call>"), 0)]


CONTENT = {"malformed_tool_calls": "content"}


async def test_chunks_of_an_engine_are_parsed_where_a_parser_is_named(
    house: Any, serve: Any, until: Any, words: Any
) -> None:
    await house.start()
    worker = await house.worker(words.Manual, "text", tool_call_parser="hermes", reasoning_parser="basic")
    await until(lambda: house.processor.cards)
    said = f"<think>Where?</think>I look.{CALL}"
    pieces = [{"content": said[:30], "role": "assistant"}, {"content": said[30:60]}, {"content": said[60:]}]
    async with openai.AsyncOpenAI(base_url=f"{await serve()}/v1", api_key="unused") as client:
        asked = client.chat.completions.create(model="text", messages=[{"role": "user", "content": "?"}], tools=TOOLS)
        waiting = asyncio.ensure_future(asked)
        await until(lambda: worker.engine.replies)
        for delta in pieces:
            worker.engine.replies[0].items(({"choices": [{"index": 0, "delta": delta}]},))
        worker.engine.replies[0].text("", 12, "stop", 1)
        answer = await waiting
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert choice.message.model_extra["reasoning_content"] == "Where?"
    assert [one.function.arguments for one in choice.message.tool_calls] == ['{"city": "Paris"}']
    assert answer.usage.completion_tokens == 12
