"""The real OpenAI client against the real server."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from dynamod.ingress.base import Logprob
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import EngineFailed, Overloaded

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0
    ) as client:
        yield client


async def test_chat(client, backend) -> None:
    answer = await client.chat.completions.create(model="org/model", messages=USER)
    assert answer.choices[0].message.content == backend.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)
    assert answer.object == "chat.completion"


async def test_unary_answer_has_the_members_of_the_seed(client) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="org/model", messages=USER)
    body = raw.http_response.json()
    assert list(body) == [
        "id", "choices", "created", "model", "service_tier", "system_fingerprint", "object", "usage"
    ]  # fmt: skip
    assert list(body["choices"][0]) == ["index", "message", "finish_reason", "logprobs"]
    message = body["choices"][0]["message"]
    assert list(message) == ["content", "refusal", "tool_calls", "role", "function_call", "audio"]
    empty = [message[name] for name in ("refusal", "tool_calls", "function_call", "audio")]
    assert empty == [None] * 4


async def test_chat_stream_has_one_chunk_per_text_and_role_in_the_first(client, backend) -> None:
    stream = await client.chat.completions.create(
        model="org/model", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    said = [word for word in backend.words if word]
    assert [chunk.choices[0].delta.content for chunk in chunks[: len(said)]] == said
    assert [chunk.choices[0].delta.role for chunk in chunks[: len(said)]] == ["assistant"] + [None] * (len(said) - 1)
    final, usage = chunks[len(said) :]
    assert (final.choices[0].finish_reason, final.choices[0].delta.content, final.usage) == ("stop", None, None)
    assert usage.choices == []
    assert usage.usage.total_tokens == 10
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].id.startswith("chatcmpl-")


async def test_annotations_in_streams(client) -> None:
    asked = {"nvext": {"annotations": ["request_id"]}}
    chat = await client.chat.completions.create(model="org/model", messages=USER, stream=True, extra_body=asked)
    first, *rest = [chunk async for chunk in chat]
    assert first.nvext["request_id"] == first.id.removeprefix("chatcmpl-")
    assert all(chunk.choices for chunk in rest)
    async with client.chat.completions.stream(model="org/model", messages=USER, extra_body=asked) as events:
        assert (await events.get_final_completion()).choices[0].message.content
    text = await client.completions.create(model="org/model", prompt="x", stream=True, extra_body=asked)
    assert [bool(chunk.choices) for chunk in [one async for one in text]][:2] == [False, True]


async def test_several_choices(client, backend) -> None:
    stream = await client.chat.completions.create(model="org/model", messages=USER, stream=True, n=3)
    texts = {0: "", 1: "", 2: ""}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert set(texts.values()) == {backend.text}
    answer = await client.chat.completions.create(model="org/model", messages=USER, n=3)
    assert [choice.message.content for choice in answer.choices] == [backend.text] * 3
    assert answer.usage.completion_tokens == 15


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)],
)
async def test_completion_prompts(client, backend, prompt, choices) -> None:
    answer = await client.completions.create(model="org/model", prompt=prompt)
    assert [choice.text for choice in answer.choices] == [backend.text] * choices
    assert answer.object == "text_completion"
    assert backend.jobs[0].request.prompt == prompt
    stream = await client.completions.create(model="org/model", prompt=prompt, stream=True)
    texts = [""] * choices
    async for chunk in stream:
        assert chunk.id.startswith("cmpl-")
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [backend.text] * choices


async def test_echo(client, backend) -> None:
    answer = await client.completions.create(model="org/model", prompt=["ab", "cd"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == [p + backend.text for p in ("ab", "ab", "cd", "cd")]
    stream = await client.completions.create(model="org/model", prompt="ab", echo=True, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "ab" + backend.text


async def test_logprobs(client, backend) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.logprobs(0, (Logprob("a", b"a", -0.5, (("a", b"a", -0.5), ("b", b"b", float("-inf")))),))
        sink.text(0, "", 1)
        sink.logprobs(0, (Logprob("\u00e9", b"\xc3\xa9", -1.0),))
        sink.text(0, "a\u00e9", 1)
        sink.finish(0, "length", 2)

    backend.play = play
    answer = await client.chat.completions.create(model="org/model", messages=USER, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [(entry.token, entry.logprob, entry.bytes) for entry in content] == [
        ("a", -0.5, [97]),
        ("\u00e9", -1.0, [195, 169]),
    ]
    assert content[0].top_logprobs[1].logprob == -9999.0
    stream = await client.chat.completions.create(model="org/model", messages=USER, logprobs=True, stream=True)
    first, final = [chunk async for chunk in stream]
    assert [entry.token for entry in first.choices[0].logprobs.content] == ["a", "\u00e9"]
    assert (first.choices[0].finish_reason, final.choices[0].finish_reason) == (None, "length")
    completion = await client.completions.create(model="org/model", prompt="x", logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert (logprobs.tokens, logprobs.text_offset) == (["a", "\u00e9"], [0, 1])
    assert logprobs.top_logprobs == [{"a": -0.5, "b": -9999.0}, {"\u00e9": -1.0}]


async def test_logprobs_of_tokens_that_are_parts_of_characters(client, backend) -> None:
    first, other, rest, word = b"\xf0\x9f", b"\xf0\x9e", b"\x8e\x89", b" hi"
    broken = "\ufffd"

    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.logprobs(0, (Logprob(broken, first, -0.5, ((broken, first, -0.5), (broken, other, -2.0))),))
        sink.logprobs(0, (Logprob(broken, rest, -0.1, ((broken, rest, -0.1),)),))
        sink.text(0, "\U0001f389", 2)
        sink.logprobs(0, (Logprob(" hi", word, -0.2), Logprob(broken, broken.encode(), -0.3)))
        sink.text(0, " hi" + broken, 2)
        sink.finish(0, "length", 4)

    backend.play = play
    names = ["bytes:\\xf0\\x9f", "bytes:\\x8e\\x89", " hi", broken]
    completion = await client.completions.create(model="org/model", prompt="x", logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs.tokens == names
    assert logprobs.top_logprobs[:2] == [{names[0]: -0.5, "bytes:\\xf0\\x9e": -2.0}, {names[1]: -0.1}]
    assert logprobs.text_offset == [0, 0, 1, 4]
    stream = await client.completions.create(model="org/model", prompt="x", logprobs=2, stream=True)
    parts = [chunk.choices[0].logprobs async for chunk in stream if chunk.choices[0].logprobs is not None]
    assert [name for part in parts for name in part.tokens] == names
    assert [place for part in parts for place in part.text_offset] == [0, 0, 1, 4]


async def test_tool_calls_of_a_text_engine(client, backend) -> None:
    def call(**function: str) -> dict:
        first = {"id": "c1", "type": "function"} if "name" in function else {}
        return {"choices": [{"index": 9, "delta": {"tool_calls": [{"index": 0, "function": function, **first}]}}]}

    async def play(job, sink) -> None:
        sink.started(1, 0, {})
        sink.chunk(0, call(name="f", arguments=""))
        sink.chunk(0, call(arguments='{"a":'))
        sink.chunk(0, call(arguments="1}"))
        sink.chunk(0, {"choices": [{"index": 9, "delta": {}, "finish_reason": "tool_calls"}]})
        sink.finish(0, "tool_calls", 9, 4)

    backend.play = play
    answer = await client.chat.completions.create(model="org/model", messages=USER)
    assert answer.choices[0].message.content is None
    tool = answer.choices[0].message.tool_calls[0]
    assert (tool.id, tool.function.name, tool.function.arguments) == ("c1", "f", '{"a":1}')
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 9)
    stream = await client.chat.completions.create(model="org/model", messages=USER, stream=True)
    chunks = [chunk async for chunk in stream]
    assert len(chunks) == 4
    assert {chunk.choices[0].index for chunk in chunks} == {0}
    pieces = [chunk.choices[0].delta.tool_calls[0].function.arguments for chunk in chunks[:3]]
    assert "".join(pieces) == '{"a":1}'
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "tool_calls"]


async def test_errors_have_openai_classes_and_fields(client, backend) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="org/model", messages=USER, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nope", messages=USER)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    backend.refuse = Overloaded("all workers are full", retry_after=1.2)
    with pytest.raises(openai.InternalServerError) as full:
        await client.chat.completions.create(model="org/model", messages=USER)
    assert (full.value.status_code, full.value.response.headers["retry-after"]) == (503, "2")
    assert full.value.type == "service_unavailable"


async def drain(stream, seen: list[str]) -> None:
    async for chunk in stream:
        seen.append(chunk.choices[0].delta.content)  # noqa: PERF401 kept when the stream raises


async def test_a_failure_in_mid_stream_raises_after_the_text(client, backend) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.text(0, "half", 1)
        await asyncio.sleep(0.05)
        sink.fail(EngineFailed("the engine died"))

    backend.play = play
    stream = await client.chat.completions.create(model="org/model", messages=USER, stream=True)
    seen = []
    with pytest.raises(openai.APIError, match="the engine died"):
        await drain(stream, seen)
    assert seen == ["half"]


async def test_a_failure_before_the_first_byte_has_its_status(client, backend) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 1, {"formatted_prompt": "x"})
        sink.fail(EngineFailed("the engine died"))

    backend.play = play
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="org/model", messages=USER, stream=stream)
        assert (caught.value.status_code, caught.value.code) == (502, "engine_failed")


async def test_models(client, backend) -> None:
    backend.cards["b"] = ModelCard(name="b", types=("chat",))
    assert [model.id async for model in client.models.list()] == ["org/model", "b"]
    model = await client.models.retrieve("org/model")
    assert (model.id, model.object, model.owned_by, model.created) == ("org/model", "model", "dynamod", 7)
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("org/none")
    with pytest.raises(openai.NotFoundError) as other:
        await client.completions.create(model="b", prompt="x")
    assert other.value.param == "model"


async def test_every_sampling_field_arrives(client, backend) -> None:
    await client.chat.completions.create(
        model="org/model", messages=USER, max_completion_tokens=3, stop=["a"], seed=-5, temperature=0.5, top_p=0.9,
        presence_penalty=1, frequency_penalty=-1, logit_bias={"5": 1}, user="me",
        extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True, "nvext": {"ignore_eos": True, "annotations": []}},
    )  # fmt: skip
    request = backend.jobs[0].request
    assert (request.max_completion_tokens, request.stop, request.seed, request.user) == (3, ["a"], -5, "me")
    assert (request.temperature, request.top_p, request.top_k, request.min_p) == (0.5, 0.9, 5, 0.1)
    assert (request.presence_penalty, request.frequency_penalty, request.logit_bias) == (1, -1, {"5": 1})
    assert request.ignore_eos
    assert request.nvext.ignore_eos
