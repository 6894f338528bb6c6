"""From requests to the mail of engines, without actors: prompts, what text engines get, seeds."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.completions import Completions, prompts_of
from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, check_served, lower
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
    endpoint = ChatCompletions() if isinstance(request, ChatRequest) else Completions()
    return Job("r", endpoint, request, body)


async def lower_text(job: Job) -> Lowered:
    return await lower(job, CARD, None, random.Random(1))


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
    assert prompts_of(completion(prompt=prompt)) == prompts


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


async def test_a_text_engine_gets_the_clients_own_body() -> None:
    body = json.dumps({"anything": [1, 2]}).encode()
    request = chat(max_tokens=7, stop="END")
    assert (await lower_text(job(request, body))).requests == [Chat("r", "m", "chat", body, 7, ("END",))]
    assert (await lower_text(job(completion(), body))).requests == [Chat("r", "m", "completion", body)]


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
async def test_the_limit_of_a_text_engine_is_the_clients(fields: dict[str, Any], limit: int | None) -> None:
    """The rest of the context is not known here: it is the engine's to keep."""
    (request,) = (await lower_text(job(chat(**fields)))).requests
    assert isinstance(request, Chat)
    assert request.max_tokens == limit


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion(prompt=["a", "b"]), "prompt"),
        (completion(prompt=[1, 2]), "prompt"),
        (chat(temperature=3.0), "temperature"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(stop=[""]), "stop"),
        (chat(logit_bias={"x": 1.0}), "logit_bias"),
        (chat(stop_token_ids=[-1]), "stop_token_ids"),
    ],
)
async def test_what_a_text_engine_is_spared(request_: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await lower_text(job(request_))
    assert caught.value.param == param


async def test_choices_differ_in_their_ids_alone() -> None:
    request = chat(n=3, nvext=NvExt(annotations=["request_id", "token_ids"]))
    lowered = await lower(job(request), CARD, None, random.Random(1))
    assert len(lowered.requests) == 3
    assert [request.request_id for request in lowered.requests] == ["r#0", "r#1", "r#2"]
    first = lowered.requests[0]
    assert all(msgspec.structs.replace(request, request_id="r#0") == first for request in lowered.requests)
    assert (lowered.prompt_tokens, lowered.annotations, lowered.model) == ([0, 0, 0], {"request_id": "r"}, None)
