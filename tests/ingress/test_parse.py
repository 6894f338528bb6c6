"""Bodies: whatever they are, a request or a BadRequest that names the field; never anything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.http.errors import error_object, json_response
from dynamod.ingress.api.parse import Parser
from dynamod.ingress.api.validate import check_chat, check_completion
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest

CHAT = Parser(ChatRequest)
COMPLETION = Parser(CompletionRequest)
GOOD = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ],
    "stop": ["a"],
    "temperature": 0.5,
    "logit_bias": {"5": -100},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "nvext": {"annotations": ["token_ids"], "unknown": 1},
    "stream": True,
    "stream_options": {"include_usage": True},
}


def chat(body: bytes) -> tuple[ChatRequest, int]:
    request, unknown = CHAT.parse(body)
    check_chat(request)
    return request, unknown


def completion(body: bytes) -> tuple[CompletionRequest, int]:
    request, unknown = COMPLETION.parse(body)
    check_completion(request)
    return request, unknown


def refused(call, body) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        call(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def test_a_good_request_passes() -> None:
    request, unknown = chat(json.dumps(GOOD).encode())
    assert unknown == 0  # nested strangers hurt nobody
    assert request.messages[1].content[1].text == "b"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"best_of": 2}, "best_of"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": False}, "stream_options"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"nvext": {"top_k": -5}}, "nvext.top_k"),
        ({"nvext": {"token_data": [2**31]}}, "nvext.token_data"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"unknown": 1, "n": "x"}, "n"),
    ],
)
def test_a_wrong_chat_field_is_named(change, param) -> None:
    error = refused(chat, GOOD | change)
    assert error.param == param
    assert param.split("[")[0].split(".")[0] in str(error)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[2**31]]}, "prompt[0]"),
        ({"prompt": ["a"] * 17, "n": 128}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True, "prompt": [1]}, "echo"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_a_wrong_completion_field_is_named(change, param) -> None:
    assert refused(completion, {"model": "m", "prompt": "x"} | change).param == param


def test_missing_required_fields_are_named() -> None:
    assert refused(chat, {"model": "m"}).param == "messages"
    assert refused(completion, {"foo": 1}).param == "prompt"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b'{"prompt":"x","messages":[]} x', "JSON"),
        (b"\xef\xbb\xbf{}", "JSON"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "UTF-8"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "JSON"),
        (b'{"temperature":NaN}', "JSON"),
        (b'{"metadata":' + b"[" * 100000 + b"]" * 100000 + b"}", "deep"),
        (b'{"unknown":' + b"[" * 100000 + b"]" * 100000 + b"}", "deep"),
        (b'{"seed":' + b"9" * 5000 + b"}", "seed"),
        (b'{"temperature":1e999}', "temperature"),
    ],
)
@pytest.mark.parametrize("call", [chat, completion])
def test_broken_bodies(call, body, says) -> None:
    assert says in str(refused(call, body))


def test_unknown_fields_are_counted_and_the_rest_is_read() -> None:
    request, unknown = chat(json.dumps(GOOD | {"one": 1, "two": {"a": [1]}}).encode())
    assert unknown == 2
    assert request.temperature == 0.5
    with pytest.raises(BadRequest, match="one, two") as caught:
        CHAT.parse(json.dumps(GOOD | {"one": 1, "two": 2}).encode(), reject_unknown=True)
    assert caught.value.param == "one"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__})) | st.text()


def survives(body: bytes) -> None:
    for call in (chat, completion):
        try:
            call(body)
        except BadRequest as error:
            json_response(error_object(error))


@given(st.binary(max_size=60))
def test_any_bytes(body) -> None:
    survives(body)


@given(VALUES)
def test_any_json(value) -> None:
    survives(json.dumps(value).encode())


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_good_request_with_any_fields_changed(change) -> None:
    survives(json.dumps(GOOD | {"prompt": "x"} | change).encode())


@given(st.lists(st.integers(0, 10**6), max_size=4), st.binary(max_size=4))
def test_a_good_request_with_bytes_changed(places, new) -> None:
    body = bytearray(json.dumps(GOOD).encode())
    for place in places:
        at = place % len(body)
        body[at : at + len(new)] = new
    survives(bytes(body))
