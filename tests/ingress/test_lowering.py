"""From requests to the mail of engines, without actors: prompts, what text engines get, seeds."""

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.completions import Completions, prompts_of
from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, Served, _seeded, check_served
from dynamod.ingress.parsing import skips_special
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import BadRequest, TooLarge
from dynamod.message.openai import (
    CONSTRAINTS,
    ChatRequest,
    CompletionRequest,
    Message,
    NvExt,
    ResponseFormat,
)
from dynamod.message.worker import Chat, Generate, Grammar, Sampling

CARD = ModelCard("m", "text", context_length=100)


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(**{"model": "m", "messages": [Message("user", "hi")], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": "m", "prompt": "hi", **fields})


def job(request: ChatRequest | CompletionRequest, body: bytes = b"{}") -> Job:
    endpoint = ChatCompletions() if isinstance(request, ChatRequest) else Completions()
    return Job("r", endpoint, request, body)


async def lower_text(job: Job) -> Lowered:
    return await job.endpoint.lower(job, Served(CARD, None, random.Random(1)))


def test_an_engine_with_noise_of_its_own_gets_only_the_seeds_of_clients() -> None:
    generate = Generate("r", "m", b"")
    for sample in range(3):
        drawn = _seeded(generate, sample, random.Random(1), own_noise=False).sampling
        assert drawn.seed is not None
        assert _seeded(generate, sample, random.Random(1), own_noise=True).sampling.seed is None
        given = msgspec.structs.replace(generate, sampling=Sampling(seed=5, n=3))
        assert _seeded(given, sample, None, own_noise=True).sampling == Sampling(seed=5 + sample, n=1)


def test_who_continues() -> None:
    assert not Capabilities().continues
    assert Capabilities(greedy_continuation=True).continues
    assert Capabilities(exact_continuation=True).continues


@given(st.booleans(), st.none() | st.booleans())
def test_special_tokens_are_shown_as_the_client_says_or_the_engine(verbatim: bool, asked: bool | None) -> None:
    card = ModelCard("m", capabilities=Capabilities(verbatim=verbatim))
    for request in (chat(skip_special_tokens=asked), completion(skip_special_tokens=asked)):
        assert skips_special(request, card) == (not verbatim if asked is None else asked)


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


@pytest.mark.parametrize("format_", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}])
@pytest.mark.parametrize("can", [True, False])
def test_a_form_of_the_answer_needs_an_engine_with_grammars(can: bool, format_: dict[str, Any]) -> None:
    card = ModelCard("m", capabilities=Capabilities(grammars=can))
    request = msgspec.convert({"messages": [{"role": "user", "content": "x"}], "response_format": format_}, ChatRequest)
    if can:
        check_served(request, card)
        return
    with pytest.raises(BadRequest, match="grammars") as caught:
        check_served(request, card)
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        *({name: {"x": 1}} for name in CONSTRAINTS),
        {"grammar": "root ::= x"},
        {"nvext": {"guided_regex": "x+"}},
        {"nvext": {"guided_choice": ["a", "b"]}},
    ],
)
def test_nobody_is_left_to_believe_in_a_grammar(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    request, unknown = ChatCompletions().read(body)
    assert unknown == 0
    check_served(request, ModelCard("m", capabilities=Capabilities(grammars=True)))
    with pytest.raises(BadRequest, match="has no grammars") as caught:
        check_served(request, CARD)
    [(name, value)] = fields.items()
    assert caught.value.param == (name if name != "nvext" else f"nvext.{next(iter(value))}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 2], "echo": True}, "echo"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
        ({"temperature": 3.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": {"2147483648": 1.0}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
async def test_what_a_text_engine_is_spared(fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"prompt": "hi", **fields}).encode()
    with pytest.raises(BadRequest) as caught:
        await lower_text(Job("r", Completions(), Completions().read(body)[0], body))
    assert caught.value.param == param


@given(
    st.text(min_size=1)
    | st.lists(st.text(min_size=1), min_size=1, max_size=4)
    | st.lists(st.integers(0, 9), min_size=1),
    st.integers(1, 3),
    st.none() | st.integers(1, 9),
)
def test_a_text_engine_gets_each_prompt_by_itself(prompt: Any, samples: int, limit: int | None) -> None:
    fields = {"prompt": prompt, "n": samples, "extra": {"prompt": 1}} | ({} if limit is None else {"max_tokens": limit})
    body = json.dumps(fields).encode()
    lowered = asyncio.run(lower_text(Job("r", Completions(), Completions().read(body)[0], body)))
    prompts = prompts_of(completion(prompt=prompt))
    expected = [{**fields, "prompt": one} for one in prompts for _ in range(samples)]
    assert [json.loads(cast("Chat", request).body) for request in lowered.requests] == expected
    assert len(lowered.outputs) == len(lowered.prompt_tokens) == len(expected)


async def test_choices_differ_in_their_ids_alone() -> None:
    request = chat(n=3, nvext=NvExt(annotations=["request_id", "token_ids"]))
    lowered = await lower_text(job(request))
    assert len(lowered.requests) == 3
    assert [request.request_id for request in lowered.requests] == ["r#0", "r#1", "r#2"]
    first = lowered.requests[0]
    assert all(msgspec.structs.replace(request, request_id="r#0") == first for request in lowered.requests)
    assert (lowered.prompt_tokens, lowered.annotations, lowered.model) == ([0, 0, 0], {"request_id": "r"}, None)


async def test_a_large_body_is_not_copied_for_many_choices() -> None:
    request = chat(n=128)
    with pytest.raises(TooLarge) as caught:
        await lower_text(Job("r", ChatCompletions(), request, b" " * 2_000_000))
    assert caught.value.param == "n"
    assert len((await lower_text(Job("r", ChatCompletions(), request, b" " * 900_000))).requests) == 128


def test_a_completion_may_not_ask_for_a_form_either() -> None:
    with pytest.raises(BadRequest) as caught:
        check_served(completion(response_format=ResponseFormat("json_object")), CARD)
    assert caught.value.param == "response_format"
    check_served(completion(response_format=ResponseFormat("text")), CARD)


async def test_forms_need_the_bytes_of_tokens_and_are_checked_once_they_are_known() -> None:
    checked = []

    class Checks:
        async def check(self, field: str, grammar: Grammar) -> None:
            checked.append((field, grammar))

    def served(has_pieces: bool) -> Served:
        model: Any = SimpleNamespace(tokenizer=SimpleNamespace(has_pieces=has_pieces))
        card = msgspec.structs.replace(CARD, capabilities=Capabilities(grammars=True))
        return Served(card, model, random.Random(1), checks=lambda: cast("Any", Checks()))

    assert await served(True).grammar(chat()) is None
    with pytest.raises(BadRequest) as caught:
        await served(False).grammar(chat(guided_regex="a"))
    assert (caught.value.param, caught.value.code) == ("guided_regex", "unsupported_parameter")
    assert checked == []
    assert await served(True).grammar(chat(guided_regex="a")) == Grammar("regex", "a")
    assert checked == [("guided_regex", Grammar("regex", "a"))]


def test_every_choice_has_the_form() -> None:
    form = Grammar("regex", "a")
    assert _seeded(Generate("r", "m", b""), 1, random.Random(1), False, form).grammar == form
