"""Requests and answers of the Python client API: NVIDIA Dynamo's words and our mail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from dynamod.actor import StreamGap
from dynamod.actor.testing import virtual
from dynamod.engine.python.requests import openai, preprocessed, room
from dynamod.engine.python.writers import ChunkWriter, TokenWriter
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, EngineFailed
from dynamod.message.ingress import Accepted, Failed, Items, Text, Tokens
from dynamod.message.worker import Call, Chat, Generate, Sampling, Stops
from dynamod.runtime.builtin import Answer, request_for
from dynamod.transport.base import Reply

from .calling import Out, called


def test_a_request_in_the_words_of_the_original() -> None:
    request = Generate(
        "r1",
        "m",
        tokens.pack([1, 2, 3]),
        Stops(max_tokens=10, stop=("END",), stop_token_ids_hidden=(7,), min_tokens=2, ignore_eos=True),
        Sampling(temperature=0.5, seed=4, logit_bias={5: 1.0}, logprobs=2),
        eos_token_ids=(9,),
        mdc_sum="abc",
        annotations=("key:value",),
    )
    made = preprocessed(request)
    assert made["token_ids"] == [1, 2, 3]
    assert made["stop_conditions"] == {
        "max_tokens": 10,
        "stop": ["END"],
        "stop_token_ids_hidden": [7],
        "min_tokens": 2,
        "ignore_eos": True,
    }
    sampling = made["sampling_options"]
    assert (sampling["temperature"], sampling["seed"], sampling["top_p"]) == (0.5, 4, None)
    assert sampling["logit_bias"] == {5: 1.0}
    assert made["output_options"]["logprobs"] == 2
    assert (made["eos_token_ids"], made["mdc_sum"], made["annotations"]) == ([9], "abc", ["key:value"])
    assert "batch_token_ids" in made
    assert room(request) == 10
    msgspec.json.encode(made)


def test_what_another_engine_has_generated_is_prompt_and_lowers_the_limits() -> None:
    request = Generate("r1", "m", tokens.pack([1, 2]), Stops(max_tokens=4, min_tokens=5), prior_output=tokens.pack([8]))
    made = preprocessed(request)
    assert made["token_ids"] == [1, 2, 8]
    assert (made["stop_conditions"]["max_tokens"], made["stop_conditions"]["min_tokens"]) == (3, 4)
    assert room(request) == 3
    assert room(Generate("r1", "m", b"")) is None
    assert preprocessed(Generate("r1", "m", b""))["stop_conditions"]["max_tokens"] is None


def test_a_text_engine_gets_the_request_of_the_client_for_one_choice() -> None:
    body = {"model": "m", "messages": [], "n": 3, "whatever": 1}
    assert openai(Chat("r", "m", "chat", msgspec.json.encode(body))) == {**body, "n": 1}
    with pytest.raises(BadRequest, match="cannot be read"):
        openai(Chat("r", "m", "chat", b"{"))


def test_a_call_to_a_worker_that_ships_is_the_mail_it_takes() -> None:
    card = ModelCard("m", eos_token_ids=(9,), mdc_sum="abc", engine="mocker")
    request = Generate(
        "r1",
        "m",
        tokens.pack([1, 2, 3]),
        Stops(max_tokens=10, stop=("END",), min_tokens=2),
        Sampling(temperature=0.5, seed=4, logprobs=1),
        eos_token_ids=(9,),
        mdc_sum="abc",
        annotations=("a",),
    )
    assert request_for(card, "r1", preprocessed(request)) == request
    assert request_for(card, "r1", {"token_ids": [1]}) == Generate(
        "r1", "m", tokens.pack([1]), eos_token_ids=(9,), mdc_sum="abc"
    )
    for payload, message in (
        ("text", "takes a dict, not str"),
        ({}, "takes token_ids"),
        ({"token_ids": ["a"]}, "cannot be read"),
        ({"token_ids": [1], "stop_conditions": {"max_tokens": "many"}}, "cannot be read"),
    ):
        with pytest.raises(BadRequest, match=message):
            request_for(card, "r1", payload)
    python = msgspec.structs.replace(card, engine="python")
    assert request_for(None, "r1", "x") == request_for(python, "r1", "x") == Call("r1", "x")
    text = msgspec.structs.replace(card, kind="text")
    chat = request_for(text, "r1", {"messages": [], "max_tokens": 3})
    assert isinstance(chat, Chat)
    assert (chat.kind, chat.max_tokens, msgspec.json.decode(chat.body)["model"]) == ("chat", 3, "m")
    completion = request_for(text, "r1", {"prompt": "x"})
    assert isinstance(completion, Chat)
    assert completion.kind == "completion"


def test_its_deltas_are_items() -> None:
    answer = Answer()
    assert answer.item(Tokens(1, 0, tokens.pack([5, 6]))) == {"token_ids": [5, 6], "finish_reason": None}
    assert answer.item(Tokens(1, 1, tokens.pack([6]))) is None  # doubled
    assert answer.item(Tokens(1, 1, tokens.pack([6, 7]), "stop")) == {"token_ids": [7], "finish_reason": "stop"}
    with pytest.raises(StreamGap):
        answer.item(Tokens(1, 5, tokens.pack([1])))
    answer = Answer()
    (choice,) = (answer.item(Text(1, 0, "ab")) or {})["choices"]
    assert choice == {"index": 0, "delta": {"content": "ab"}, "text": "ab", "finish_reason": None}
    (choice,) = (answer.item(Text(1, 2, "", 0, "length")) or {})["choices"]
    assert choice["finish_reason"] == "length"
    assert answer.item(Accepted(1)) is None


# Answers.


def token_answer(*items: Any, room: int | None = None) -> list[Any]:
    out = Out()
    answer = TokenWriter(Reply(out, 1), "E.generate", room)
    for item in items:
        if answer.take(item) == 0:
            break
    answer.end()
    return out.said


def test_an_engine_may_say_what_was_cached_with_its_first_tokens() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    out = Out()
    answer = TokenWriter(Reply(out, 1), "E.generate", None)
    for item in ({"token_ids": [1], "completion_usage": usage}, {"token_ids": [2], "completion_usage": usage}):
        answer.take(item)
    answer.take({"token_ids": [], "finish_reason": "stop", "completion_usage": {"prompt_tokens_details": "x"}})
    assert [delta.cached_tokens for delta in out.said] == [4, None, None, None], "once"
    assert [len(delta.ids) for delta in out.said] == [0, 4, 4, 0]


@pytest.mark.parametrize(
    ("items", "room", "deltas"),
    [
        ([{"token_ids": [1, 2]}, {"token_ids": [3]}], None, [([1, 2], None), ([3], None), ([], "stop")]),
        ([{"token_ids": [1]}, {"token_ids": [3], "finish_reason": "eos"}], 9, [([1], None), ([3], "stop")]),
        ([{"token_ids": (1, 2)}], 2, [([1, 2], None), ([], "length")]),
        (
            [{"token_ids": [1], "finish_reason": None, "text": "a"}, {"finish_reason": "length"}],
            5,
            [([1], None), ([], "length")],
        ),
        ([{"token_ids": []}, {"token_ids": [], "finish_reason": "content_filter"}], None, [([], "content_filter")]),
        ([{"token_ids": [1], "finish_reason": "stop"}, {"token_ids": [2]}], None, [([1], "stop")]),
        ([], None, [([], "stop")]),
    ],
)
def test_token_ids_become_deltas(
    items: list[Any], room: int | None, deltas: list[tuple[list[int], str | None]]
) -> None:
    said = token_answer(*items, room=room)
    assert [(list(tokens.unpack(delta.ids)), delta.finish) for delta in said] == deltas
    assert all(isinstance(delta, Tokens) for delta in said)


class Output(BaseModel):
    token_ids: list[int]


def test_a_model_of_pydantic_will_do_and_so_will_arrays() -> None:
    import array

    said = token_answer(Output(token_ids=[4]), {"token_ids": array.array("q", [5])})
    assert [list(tokens.unpack(delta.ids)) for delta in said] == [[4], [5], []]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ([1, 2], r"E\.generate yielded \[1, 2\] \(list\): a dict with token_ids is needed"),
        ("text", r"yielded 'text' \(str\)"),
        (object(), "cannot be sent"),
        ({"text": "hello"}, "neither token_ids nor finish_reason; it has: text"),
        ({"token_ids": "abc"}, r"token_ids 'abc' \(str\): a list of whole numbers"),
        ({"token_ids": [1.5]}, r"token_ids \[1.5\] \(list\)"),
        ({"token_ids": 7}, r"token_ids 7 \(int\)"),
        ({"token_ids": [2**31]}, "the token id 2147483648, which is no 32-bit number"),
        ({"token_ids": [5, -1]}, "the token id -1: none is negative"),
        ({"token_ids": [1], "finish_reason": "done"}, "finish_reason 'done'; known are: stop, eos, length"),
        ({"token_ids": [], "finish_reason": "error: out of memory"}, r"E\.generate: out of memory"),
        ({"token_ids": [], "finish_reason": {"error": "boom"}}, r"E\.generate: boom"),
        ({"token_ids": [], "finish_reason": "cancelled"}, "cancelled the request"),
    ],
)
def test_an_item_that_is_none_says_what_is_wrong(item: Any, message: str) -> None:
    with pytest.raises(EngineFailed, match=message):
        token_answer(item)


def chunk(text: str | None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **fields,
    }


async def chunks(*items: Any, pause: float = 0.0) -> tuple[list[Any], float]:
    async def handler(request: Any) -> AsyncIterator[Any]:
        for item in items:
            yield item
        await asyncio.sleep(pause)

    return await called(handler, make=ChunkWriter)


@virtual
async def test_chunks_go_as_they_are_and_counts_come_last() -> None:
    first, last = chunk("Hel"), chunk("lo", "stop")
    said, _ = await chunks(first, last)
    assert said == [Items(1, 0, (first,)), Items(1, 1, (last,)), Text(1, 2, "", 2, "stop", None)]
    usage = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}
    said, _ = await chunks(first, last, usage)
    assert said[-1] == Text(1, 2, "", 5, "stop", 11)
    usage["usage"] |= {"prompt_tokens_details": {"cached_tokens": 7}, "completion_tokens_details": None}
    said, _ = await chunks(first, last, usage)
    details = {"prompt_tokens_details": {"cached_tokens": 7}}
    assert said[2:] == [Items(1, 2, ({"choices": [], "usage": details},)), Text(1, 3, "", 5, "stop", 11)]
    said, took = await chunks(first, chunk(None, "length"), pause=60)  # no usage, and no end
    assert said[-1] == Text(1, 2, "", 1, "length", None)
    assert took < 2
    said, _ = await chunks(first)  # no reason
    assert said[-1].finish == "stop"
    said, _ = await chunks({"choices": [{"text": "once"}]})  # a completion
    assert said[0].items[0]["choices"][0]["text"] == "once"
    assert said[-1].tokens == 1


@virtual
async def test_a_whole_answer_will_do() -> None:
    message = {"role": "assistant", "content": "Hello", "tool_calls": None}
    whole = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    said, _ = await chunks(whole)
    (choice,) = said[0].items[0]["choices"]
    assert choice["delta"] == {"role": "assistant", "content": "Hello"}
    assert said[-1] == Text(1, 1, "", 1, "stop", 3)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("Hello", r"yielded 'Hello' \(str\): an OpenAI chunk as a dict is needed"),
        ({"content": "Hello"}, "without a list of choices"),
        ({"choices": "Hello"}, "without a list of choices"),
        ({"error": {"message": "the model is on fire"}}, "the model is on fire"),
        ({"choices": [{"delta": {"content": object()}}]}, "cannot be sent"),
    ],
)
@virtual
async def test_a_chunk_that_is_none(item: Any, message: str) -> None:
    said, _ = await chunks(chunk("a"), item)
    assert isinstance(said[-1], Failed)
    assert said[-1].error == "EngineFailed"
    with pytest.raises(EngineFailed, match=message):
        raise EngineFailed(said[-1].message)


@pytest.mark.parametrize("item", [object(), {"x": {1: object()}}, 2**70, {"deep": [2**64]}])
@virtual
async def test_what_cannot_be_sent_harms_no_other_stream(item: Any) -> None:
    async def handler(request: Any) -> Any:
        return item

    said, _ = await called(handler)
    assert isinstance(said[0], Failed)
    assert "which cannot be sent" in said[0].message


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt(), ValueError("x")], ids=repr
)
@virtual
async def test_whatever_a_handler_raises_is_the_error_of_its_request(error: BaseException) -> None:
    async def handler(request: Any) -> AsyncIterator[Any]:
        yield chunk("a")
        raise error

    said, took = await called(handler, make=ChunkWriter)
    assert isinstance(said[-1], Failed)
    assert said[-1].error == "EngineFailed"
    assert type(error).__name__ in said[-1].message
    assert took < 1
