"""Bodies: whatever they are, a request or a BadRequest that names the field; never anything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.http.answer import json_response
from dynamod.http.errors import error_object
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.completions import Completions
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest

chat, completion = ChatCompletions().read, Completions().read
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
        ({"min_tokens": 6, "max_tokens": 9, "max_completion_tokens": 5}, "min_tokens"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 2.1}, "repetition_penalty"),
        ({"repetition_penalty": 0.009}, "repetition_penalty"),
        ({"stop": ["a", "b" * 1001]}, "stop[1]"),
        ({"logit_bias": {"1": -101, "2": 5}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"nvext": {"repetition_penalty": 1e-10}}, "nvext.repetition_penalty"),
        ({"nvext": {"repetition_penalty": 0}}, "nvext.repetition_penalty"),
        ({"nvext": {"token_data": []}}, "nvext.token_data"),
        ({"nvext": {"backend_instance_id": -1}}, "nvext.backend_instance_id"),
        (
            {"nvext": {"router_config_override": {"router_temperature": -0.5}}},
            "nvext.router_config_override.router_temperature",
        ),
        ({"response_format": "json"}, "response_format"),
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
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, [2]]}, "prompt[1]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[2**31]]}, "prompt[0]"),
        ({"prompt": ["a"] * 17, "n": 128}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_a_wrong_completion_field_is_named(change, param) -> None:
    assert refused(completion, {"model": "m", "prompt": "x"} | change).param == param


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"temperature": 3}, "`temperature` is 3; it must be between 0 and 2"),
        ({"temperature": -0.5}, "`temperature` is -0.5; it must be between 0 and 2"),
        ({"top_p": -1}, "`top_p` is -1; it must be between 0 and 1"),
        ({"n": 129}, "`n` is 129; it must be between 1 and 128"),
        ({"top_k": 2**31}, "`top_k` is 2147483648; it must be between -1 and 2147483647"),
        ({"seed": 10**400}, f"`seed` is out of range; it must be between {-(2**63)} and {2**63 - 1}"),
        ({"nvext": {"top_k": -5}}, "`nvext.top_k` is -5; it must be between -1 and 2147483647"),
        ({"stop_token_ids": [1, -1]}, "`stop_token_ids[1]` is -1; it must be between 0 and 2147483647"),
        ({"logit_bias": {"1": 5, "2": 101}}, "`logit_bias[...]` is 101; it must be between -100 and 100"),
        ({"stop": ["a"] * 65}, "`stop` has more than 64 entries"),
        ({"stop": ["a" * 1001]}, "`stop[0]` has more than 1000 characters"),
        ({"stop": ["a", ""]}, "`stop[1]` must not be empty"),
        ({"messages": []}, "`messages` must not be empty"),
        ({"temperature": "hot"}, "`temperature`: expected float | null, got str"),
        ({"unknown": 1, "temperature": 3}, "`temperature` is 3; it must be between 0 and 2"),
    ],
)
def test_a_refusal_says_the_value_and_what_is_allowed(change, text) -> None:
    assert str(refused(chat, GOOD | change)) == text


@pytest.mark.parametrize("value", [0.01, 2, 0.1 + 0.2])
@given(st.floats(-5, 5) | st.integers(-5, 5))
def test_a_range_refuses_what_lies_outside_and_nothing_else(value, temperature) -> None:
    body = json.dumps(GOOD | {"temperature": temperature, "repetition_penalty": value}).encode()
    if 0 <= temperature <= 2:
        assert chat(body)[0].temperature == temperature
    else:
        assert refused(chat, body).param == "temperature"


@pytest.mark.parametrize(
    ("call", "change", "param"),
    [
        (chat, {"functions": [{"name": "f"}]}, "functions"),
        (chat, {"function_call": {"name": "f"}}, "function_call"),
        (chat, {"modalities": ["text", "audio"]}, "modalities"),
        (chat, {"audio": {"voice": "x"}}, "audio"),
        (chat, {"prediction": {"type": "content", "content": "x"}}, "prediction"),
        (chat, {"web_search_options": {}}, "web_search_options"),
        (chat, {"verbosity": "low"}, "verbosity"),
        (chat, {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
        (chat, {"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages[0].audio"),
        (chat, {"use_beam_search": True}, "use_beam_search"),
        (chat, {"length_penalty": 0.9}, "length_penalty"),
        (chat, {"best_of": 2}, "best_of"),
        (chat, {"nvext": {"max_thinking_tokens": 5}}, "nvext.max_thinking_tokens"),
        (completion, {"use_beam_search": True}, "use_beam_search"),
    ],
)
def test_what_would_change_the_answer_is_not_ignored(call, change, param) -> None:
    error = refused(call, {"messages": GOOD["messages"]} | change if call is chat else {"prompt": "x"} | change)
    assert (error.param, error.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    "change",
    [
        {"user": "me", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "safety_identifier": "x"},
        {"prompt_cache_key": "x", "prompt_cache_retention": "24h", "priority": 1, "parallel_tool_calls": True},
        {"use_beam_search": False, "length_penalty": 1, "n": 2, "best_of": 2, "response_format": {"type": "text"}},
        {"functions": [], "function_call": "auto", "modalities": ["text"], "audio": None, "verbosity": "medium"},
        {"stop": ["a"] * 64, "top_p": 1, "min_p": 0, "repetition_penalty": 2, "logit_bias": {"0": -100}},
    ],
)
def test_what_changes_nothing_is_accepted(change) -> None:
    assert chat(json.dumps(GOOD | change).encode())[1] == 0


def test_what_an_assistant_has_refused_is_its_text() -> None:
    parts = [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "I will not."}]
    request, _ = chat(json.dumps({"messages": [{"role": "assistant", "content": parts}]}).encode())
    assert [(part.type, part.text) for part in request.messages[0].content] == [
        ("text", "No."),
        ("text", "I will not."),
    ]
    assert refused(chat, {"messages": [{"role": "user", "content": parts}]}).param == "messages[0].content[1].type"
    for broken in ({"type": "refusal"}, {"type": "refusal", "refusal": None}, {"type": "refusal", "text": "x"}):
        found = refused(chat, {"messages": [{"role": "assistant", "content": [broken]}]})
        assert found.param == "messages[0].content[0].type"


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
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "surrogate"),
        (b'{"messages":[{"role":"user","content":"a\\ud800b"}]}', "surrogate"),
        (b'{"messages":[{"role":"user","content":"\\udc00"}]}', "surrogate"),
        (b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}', "ends too early"),
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
        chat(json.dumps(GOOD | {"one": 1, "two": 2}).encode(), reject_unknown=True)
    assert caught.value.param == "one"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__})) | st.text()


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"messages":5}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":3,"temperature":1}',
        b'{"prompt":[-1],"prompt":[]}',
        b'{"prompt":[[1],[-1]],"prompt":[[[1]]]}',
        b'{"prompt":[1,-1],"prompt":[1]}',
        b'{"prompt":"x","nvext":{"top_k":-9},"nvext":[1]}',
        b'{"prompt":"x","temperature":3,"user":"\\ud800"}',
    ],
)
def test_a_body_that_says_things_twice_or_breaks_off_later(body) -> None:
    for call in (chat, completion):
        refused(call, body)


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


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ({"max_tokens": 64.0}, "max_tokens", 64),
        ({"top_k": -1.0, "n": 2.0, "seed": 3.0}, "n", 2),
        ({"stop_token_ids": [1.0, 2, 3.0]}, "stop_token_ids", [1, 2, 3]),
        ({"temperature": 1.0}, "temperature", 1.0),
    ],
)
def test_numbers_without_a_fraction_are_integers(change, name, value) -> None:
    found = getattr(chat(json.dumps(GOOD | change).encode())[0], name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("change", [{"max_tokens": 64.5}, {"max_tokens": 1e300}, {"max_tokens": 0.0}, {"n": [1.0]}])
def test_other_numbers_are_none(change) -> None:
    with pytest.raises(BadRequest) as error:
        chat(json.dumps(GOOD | change).encode())
    assert error.value.param == next(iter(change))


def test_token_ids_of_a_prompt_may_be_floats() -> None:
    body = json.dumps({"prompt": [[1.0, 2.0], [3]]}).encode()
    assert completion(body)[0].prompt == [[1, 2], [3]]
