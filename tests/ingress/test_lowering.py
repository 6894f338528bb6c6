"""From requests to the mail of engines, without actors: prompts, what text engines get, seeds."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.ingress.base import Job
from dynamod.ingress.lowering import check_served, completion_prompts, lower, lower_text
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest, Message, NvExt
from dynamod.message.worker import Chat

CARD = ModelCard("m", "text", context_length=100)


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(**{"model": "m", "messages": [Message("user", "hi")], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": "m", "prompt": "hi", **fields})


def job(request: ChatRequest | CompletionRequest, body: bytes = b"{}") -> Job:
    return Job("r", "chat" if isinstance(request, ChatRequest) else "completion", request, body)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        ("", [""]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts(prompt: Any, prompts: Any) -> None:
    assert completion_prompts(completion(prompt=prompt)) == prompts


def test_a_chat_has_one() -> None:
    assert completion_prompts(chat()) == [None]


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [[1], "a"]])
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        completion_prompts(completion(prompt=prompt))
    assert caught.value.param == "prompt"


@given(st.booleans(), st.none() | st.booleans(), st.none() | st.integers(0, 20))
def test_logprobs_are_served_or_refused(can: bool, wanted: bool | None, count: int | None) -> None:
    card = ModelCard("m", capabilities=Capabilities(logprobs=can))
    for request, asks in [(chat(logprobs=wanted), bool(wanted)), (completion(logprobs=count), count is not None)]:
        if asks and not can:
            with pytest.raises(BadRequest, match="no logprobs") as caught:
                check_served(request, card)
            assert caught.value.param == "logprobs"
        else:
            check_served(request, card)


def test_a_text_engine_gets_the_clients_own_body() -> None:
    body = json.dumps({"anything": [1, 2]}).encode()
    request = chat(max_tokens=7, stop="END")
    assert lower_text(job(request, body), CARD) == Chat("r", "m", "chat", body, 7, ("END",))
    assert lower_text(job(completion(), body), CARD) == Chat("r", "m", "completion", body)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5000}, 100),
    ],
)
def test_the_limit_of_a_text_engine_is_the_clients(fields: dict[str, Any], limit: int | None) -> None:
    """The rest of the context is not known here: it is the engine's to keep."""
    assert lower_text(job(chat(**fields)), CARD).max_tokens == limit


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion(prompt=["a", "b"]), "prompt"),
        (completion(prompt=[1, 2]), "prompt"),
        (chat(messages=[]), "messages"),
        (chat(temperature=3.0), "temperature"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(stop=[""]), "stop"),
        (chat(logit_bias={"x": 1.0}), "logit_bias"),
        (chat(stop_token_ids=[-1]), "stop_token_ids"),
    ],
)
def test_what_a_text_engine_is_spared(request_: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        lower_text(job(request_), CARD)
    assert caught.value.param == param


async def test_choices_differ_in_their_ids_alone() -> None:
    request = chat(n=3, nvext=NvExt(annotations=["request_id", "token_ids"]))
    lowered = await lower(job(request), CARD, None, random.Random(1))
    assert len(lowered.requests) == 3
    assert [request.request_id for request in lowered.requests] == ["r#0", "r#1", "r#2"]
    first = lowered.requests[0]
    assert all(msgspec.structs.replace(request, request_id="r#0") == first for request in lowered.requests)
    assert (lowered.prompt_tokens, lowered.annotations, lowered.model) == ([0, 0, 0], {"request_id": "r"}, None)
