"""Counts beside the totals of a usage: what engines had cached of prompts, what is reasoning of answers."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest

from dynamod.engine.mocker.engine import Mocker
from dynamod.message.ingress import Frame, Tokens
from dynamod.transport.outbox import columns, merge

PROMPT = "What is it worth to you to send this somewhere else, and what does it cost to keep it here? " * 12
BLOCK = 64  # the mocker's


async def fill(house: Any) -> None:
    await house.start()
    await house.worker(Mocker, reasoning_parser="none")
    await house.worker(name="thinks", reasoning_parser="basic")


@pytest.fixture
async def client(house: Any, serve: Any, until: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    await fill(house)
    await until(lambda: len(house.processor.cards) == 2)
    async with openai.AsyncOpenAI(base_url=f"{await serve()}/v1", api_key="unused") as client:
        yield client


async def post(client: openai.AsyncOpenAI, path: str, **body: Any) -> Any:
    return await client.post(path, cast_to=object, body={"model": "sample", **body})


def expected(prompt_tokens: int) -> int:
    """Tokens of the full blocks of a prompt that was asked before; its last token is computed in any case."""
    return min(prompt_tokens // BLOCK * BLOCK, prompt_tokens - 1)


async def test_cached_tokens_in_every_form_of_answer(client: openai.AsyncOpenAI) -> None:
    cold = (await post(client, "/completions", prompt=PROMPT, max_tokens=2))["usage"]
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
    assert "completion_tokens_details" not in cold, "nobody looks for reasoning"
    length = cold["prompt_tokens"]
    assert length > 3 * BLOCK
    warm = (await post(client, "/completions", prompt=PROMPT, max_tokens=2))["usage"]
    assert warm == cold | {"prompt_tokens_details": {"cached_tokens": expected(length)}}
    options: Any = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    streamed = [one async for one in await client.completions.create(model="sample", prompt=PROMPT, **options)]
    assert streamed[-1].usage is not None
    assert streamed[-1].usage.to_dict()["prompt_tokens_details"] == {"cached_tokens": expected(length)}
    assert not any(one.usage for one in streamed[:-1])

    both = (await post(client, "/completions", prompt=[PROMPT, f"Other. {PROMPT}"], n=2, max_tokens=2))["usage"]
    assert both["prompt_tokens_details"]["cached_tokens"] == expected(length), "of the second prompt nothing was cached"

    messages: Any = [{"role": "user", "content": PROMPT}]
    first = (await post(client, "/chat/completions", messages=messages, max_tokens=2))["usage"]
    chat = [one async for one in await client.chat.completions.create(model="sample", messages=messages, **options)]
    assert chat[-1].usage is not None
    assert chat[-1].usage.prompt_tokens_details is not None
    assert chat[-1].usage.prompt_tokens_details.cached_tokens == expected(first["prompt_tokens"])


THOUGHTS = ("<think>Which city is it?</think>Paris", "Paris", "a < b <think>so</think>\nParis")


@pytest.mark.parametrize("text", THOUGHTS)
async def test_reasoning_tokens(client: openai.AsyncOpenAI, house: Any, text: str) -> None:
    raw: Any = {"nvext": {"use_raw_prompt": True}}
    messages: Any = [{"role": "user", "content": text}]
    fields: Any = {"model": "thinks", "messages": messages, "extra_body": raw}
    whole = (await client.chat.completions.create(**fields)).usage
    assert whole is not None
    assert whole.completion_tokens_details is not None
    count = whole.completion_tokens_details.reasoning_tokens
    assert count == reasoning(house.backend.model("thinks").tokenizer, text)
    assert "prompt_tokens_details" not in whole.to_dict(), "the echo engine has no cache"
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [one async for one in await client.chat.completions.create(**fields, **options)]
    assert chunks[-1].usage == whole


def reasoning(tokenizer: Any, text: str) -> int:
    """Tokens of a text of which some is reasoning or its markers."""
    first, end = text.find("<think>"), text.find("</think>") + len("</think>")
    if first < 0:
        return 0
    ids, count = tokenizer.encode(text), 0
    for index in range(len(ids)):
        before, after = len(tokenizer.decode(ids[:index])), len(tokenizer.decode(ids[: index + 1]))
        count += before < end and after > first
    return count


def test_peers_of_other_versions_understand_each_other() -> None:
    class Older(msgspec.Struct, frozen=True, array_like=True, tag=1):
        stream: int
        offset: int
        ids: bytes
        finish: str | None = None

    new = Tokens(3, 0, b"", None, 5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=Older) == Older(3, 0, b"")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Older(3, 2, b"abcd")), type=Tokens) == Tokens(3, 2, b"abcd")


def test_the_count_survives_a_slow_reader_and_leaves_steps_alone() -> None:
    said = [Tokens(1, 0, b"", None, 5), Tokens(1, 0, b"aaaa"), Tokens(2, 7, b"bbbb"), Tokens(1, 1, b"cccc", "stop")]
    assert merge(list(said)) == [Tokens(1, 0, b"aaaacccc", "stop", 5), Tokens(2, 7, b"bbbb")]
    one, step, end = columns(list(said))
    assert one == said[0]
    assert end == said[3]
    assert step.streams == b"\1\0\0\0\2\0\0\0"  # type: ignore[union-attr]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Frame((one, step, end))), type=Frame).deltas[0] == said[0]
