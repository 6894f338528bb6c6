import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.completions import Completions
from dynamod.message.errors import BadRequest, RequestError, UserError
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.message.tokens import unpack
from dynamod.message.worker import Generate
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model

from .conftest import CHATML, bytes_gguf, write_folder

HI = [{"role": "user", "content": "hi"}]


def test_tokens_are_left_when_none_may_end_the_answer(model: Model) -> None:
    every = list(range(model.tokenizer.vocab_size))
    with pytest.raises(BadRequest) as caught:
        model.prepare_chat(chat(stop_token_ids=every, min_tokens=1))
    assert caught.value.param == "stop_token_ids"
    model.prepare_chat(chat(stop_token_ids=every))
    model.prepare_chat(chat(stop_token_ids=every[:-3], min_tokens=1, ignore_eos=True))


TOOL = {"type": "function", "function": {"name": "get", "parameters": {}}}


@pytest.fixture(scope="module")
def model(bytes_folder: Path) -> Model:
    return Model.load(read_card(bytes_folder, name="m"))


@pytest.fixture(scope="module")
def pieces(pieces_folder: Path) -> Model:
    return Model.load(read_card(pieces_folder, name="p"))


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"messages": HI, **fields}, ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"prompt": "", **fields}, CompletionRequest)


def lowered(model: Model, request: ChatRequest, request_id: str) -> Generate:
    return model.encode(model.prepare_chat(request), request_id)


def continued(model: Model, request: CompletionRequest, prompt: Any, request_id: str) -> Generate:
    return model.encode(model.prepare_prompts(request, [prompt])[0], request_id)


def answered(model: Model, **fields: Any) -> list[Generate]:
    """What the body of a completion request becomes."""
    request, _ = Completions().read(json.dumps(fields).encode())
    return [model.encode(prepared, "i") for prepared in Completions().prompts(model, request)]


def text_of(model: Model, generate: Generate) -> str:
    return model.tokenizer.decode(unpack(generate.token_ids), skip_special=False)


def refused(model: Model, **fields: Any) -> BadRequest:
    """Why the API or the model refuses a body."""
    with pytest.raises(BadRequest) as caught:
        lowered(model, ChatCompletions().read(json.dumps({"messages": HI, **fields}).encode())[0], "id")
    return caught.value


def test_a_chat_request_becomes_a_generate(model: Model) -> None:
    generate = lowered(model, chat(nvext={"annotations": ["token_ids"]}), "id-1")
    assert text_of(model, generate) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (generate.request_id, generate.model, generate.annotations) == ("id-1", "m", ("token_ids",))
    assert generate.mdc_sum == model.card.mdc_sum != ""
    assert generate.eos_token_ids == (2, 0)
    tokens = len(generate.token_ids) // 4
    assert generate.stops.max_tokens == 512 - tokens
    assert generate.stops.stop_token_ids_hidden == (2, 0)
    assert generate.stops.stop is None
    assert generate.sampling.temperature == 0.6  # the model's own default
    assert (generate.sampling.top_p, generate.sampling.top_k) == (0.9, 20)


def test_a_gguf_model_lowers_alike(tmp_path: Path, bytes_reference: Reference, model: Model) -> None:
    other = Model.load(read_card(bytes_gguf(tmp_path / "x.gguf", bytes_reference, chat_template=CHATML), name="g"))
    assert lowered(other, chat(), "i").token_ids == lowered(model, chat(), "i").token_ids


def test_prepare_and_encode_are_the_two_halves(model: Model) -> None:
    prepared = model.prepare_chat(chat())
    assert prepared.prompt == model.render(chat()) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert model.encode(prepared, "x") == lowered(model, chat(), "x")
    assert not model.needs_thread("x" * 100_000)
    assert model.needs_thread("x" * 100_001)
    model.tokenizer.backend = "tokenizers"
    try:
        assert model.needs_thread("x" * 2_501)
        assert not model.needs_thread("x" * 2_500)
    finally:
        model.tokenizer.backend = "fastokens"


def test_completions(model: Model, pieces: Model) -> None:
    assert text_of(model, continued(model, completion(), "once upon", "i")) == "once upon"
    assert list(unpack(continued(model, completion(), [5, 6, 7], "i").token_ids)) == [5, 6, 7]
    plain = pieces.tokenizer.encode("hi")
    for prompt in ("hi", "<s>hi"):
        assert list(unpack(continued(pieces, completion(), prompt, "i").token_ids)) == [1, *plain]
    assert continued(model, completion(logprobs=3), "x", "i").sampling.logprobs == 3


def test_everything_the_client_says_about_sampling(model: Model) -> None:
    sent = {
        "n": 2, "best_of": 2, "presence_penalty": 1.0, "frequency_penalty": -1.0, "repetition_penalty": 1.2,
        "temperature": 0.0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "use_beam_search": False, "length_penalty": 1.0,
        "seed": 42,
    }  # fmt: skip
    request = chat(**sent, logit_bias={"5": -100, "6": 1.5}, logprobs=True, top_logprobs=4)
    sampling = lowered(model, request, "i").sampling
    assert {key: getattr(sampling, key) for key in sent} == sent
    assert sampling.logit_bias == {5: -100.0, 6: 1.5}
    assert sampling.logprobs == 4
    assert lowered(model, chat(logprobs=True), "i").sampling.logprobs == 0
    assert lowered(model, chat(logprobs=False), "i").sampling.logprobs is None
    assert lowered(model, chat(top_k=0), "i").sampling.top_k == -1


def test_nvext(model: Model) -> None:
    generate = lowered(
        model,
        chat(
            temperature=1.0, nvext={"greed_sampling": True, "top_k": 3, "repetition_penalty": 1.3, "ignore_eos": True}
        ),
        "i",
    )
    sampling = generate.sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.0, 3, 1.3)
    assert (generate.stops.ignore_eos, generate.stops.stop_token_ids_hidden) == (True, ())
    generate = lowered(model, chat(top_k=9, ignore_eos=False, nvext={"top_k": 3, "ignore_eos": True}), "i")
    assert (generate.sampling.top_k, generate.stops.stop_token_ids_hidden) == (9, (2, 0))
    messages = [*HI, {"role": "assistant", "content": "x"}, {"role": "user", "content": "raw text"}]
    generate = lowered(model, chat(messages=messages, nvext={"use_raw_prompt": True}), "i")
    assert text_of(model, generate) == "raw text"
    assert list(unpack(lowered(model, chat(nvext={"token_data": [9, 8]}), "i").token_ids)) == [9, 8]
    generate = continued(model, completion(nvext={"token_data": [9, 8]}), "not this", "i")
    assert list(unpack(generate.token_ids)) == [9, 8]


def test_stops(model: Model) -> None:
    stops = lowered(model, chat(stop=["a", "b"], stop_token_ids=[7, 2], min_tokens=3, max_tokens=9), "i").stops
    assert (stops.stop, stops.stop_token_ids_hidden, stops.min_tokens) == (("a", "b"), (2, 0, 7), 3)
    assert stops.max_tokens == 9
    assert lowered(model, chat(stop="a"), "i").stops.stop == ("a",)
    assert lowered(model, chat(stop=[]), "i").stops.stop is None
    assert lowered(model, chat(max_tokens=9, max_completion_tokens=5), "i").stops.max_tokens == 5
    assert (
        lowered(model, chat(min_tokens=600), "i").stops.min_tokens
        == 512 - len(lowered(model, chat(), "i").token_ids) // 4
    )
    assert (
        lowered(model, chat(max_tokens=10**6), "i").stops.max_tokens
        == 512 - len(lowered(model, chat(), "i").token_ids) // 4
    )


def test_an_unknown_context_sets_no_limit(model: Model) -> None:
    open_model = Model(msgspec.structs.replace(model.card, context_length=0), model.tokenizer, model.templates)
    assert lowered(open_model, chat(), "i").stops.max_tokens is None
    assert lowered(open_model, chat(max_tokens=7), "i").stops.max_tokens == 7


def test_a_prompt_that_does_not_fit(model: Model) -> None:
    ids = [5] * 512
    with pytest.raises(BadRequest, match=r"512 tokens, but the prompt has 512 tokens") as caught:
        continued(model, completion(), ids, "i")
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert continued(model, completion(), ids[1:], "i").stops.max_tokens == 1
    error = refused(model, messages=[{"role": "user", "content": "字" * 600}])
    assert (error.param, error.code) == ("messages", "context_length_exceeded")
    with pytest.raises(BadRequest, match="at least 19531 tokens") as caught:
        model.prepare_prompts(completion(), ["x" * 5_000_000])  # refused before it is tokenised
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": -0.01}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 2**31}, "min_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"top_k": 2**31}, "top_k"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 9, "max_completion_tokens": 5}, "min_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": ["a" * 1001]}, "stop[0]"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"nvext": {"top_k": -2}}, "nvext.top_k"),
        ({"nvext": {"repetition_penalty": 0}}, "nvext.repetition_penalty"),
        ({"nvext": {"token_data": [-1]}}, "nvext.token_data"),
        ({"nvext": {"token_data": []}}, "nvext.token_data"),
        ({"nvext": {"use_raw_prompt": True}, "messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [*HI, {"role": "", "content": "x"}]}, "messages[1].role"),
        ({"messages": [*HI, {"role": "usr", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
         "messages[0].content[1].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"nvext": {"use_raw_prompt": True}, "messages": [{"role": "user", "content": "a\ud800"}]}, None),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "other", "function": {"name": "x"}}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "put"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [{"role": "assistant", "content": " "}]}, "messages"),
    ],
)  # fmt: skip
def test_what_is_refused_and_by_which_name(model: Model, fields: dict[str, Any], param: str | None) -> None:
    error = refused(model, **fields)
    if param is not None:
        assert error.param == param
    assert error.status == 400


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        chat(**{name: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0}, {"temperature": 2}, {"top_p": 1}, {"top_p": 0}, {"top_k": -1}, {"min_p": 0}, {"min_p": 1},
        {"presence_penalty": -2}, {"frequency_penalty": 2}, {"seed": -(2**63)}, {"max_tokens": 1}, {"min_tokens": 0},
        {"min_tokens": 5, "max_tokens": 5}, {"logit_bias": {}}, {"logit_bias": {"0": -100}}, {"stop": ["a"] * 64},
        {"n": 128}, {"top_logprobs": 0}, {"top_logprobs": 20, "logprobs": True}, {"tools": []}, {"tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get"}}},
        {"messages": [{"role": "developer", "content": "x"}]},
    ],
)  # fmt: skip
def test_what_lies_on_the_edge_is_served(model: Model, fields: dict[str, Any]) -> None:
    assert lowered(model, chat(**fields), "i").token_ids


def test_top_p_0_is_the_best_token(model: Model) -> None:
    sampling = lowered(model, chat(top_p=0, top_k=5), "i").sampling
    assert (sampling.top_p, sampling.top_k) == (None, 1)


def test_completion_prompts_that_are_refused(model: Model) -> None:
    for prompt in ([], "", [-1], [10**6], [True], [[10**6]], None):
        with pytest.raises(BadRequest) as caught:
            answered(model, prompt=prompt)
        assert (caught.value.param or "").split("[")[0] == "prompt"
    with pytest.raises(BadRequest) as caught:
        Completions().read(json.dumps({"prompt": "x", "logprobs": 21}).encode())
    assert caught.value.param == "logprobs"


def test_a_model_without_a_template_takes_completions_only(pieces: Model) -> None:
    with pytest.raises(BadRequest, match="no chat template; use /v1/completions"):
        lowered(pieces, chat(), "i")
    assert continued(pieces, completion(), "hi", "i").token_ids
    assert lowered(pieces, chat(nvext={"use_raw_prompt": True}), "i").token_ids


def recorded(template: str, tmp_path: Path, reference: Reference) -> Model:
    folder = write_folder(tmp_path, reference, config={}, tokenizer_config={"chat_template": template})
    return Model.load(read_card(folder, name="t"))


SEEN = "{{ {'m': messages, 't': tools, 'x': x, 'e': reasoning_effort} | tojson }}"


def test_what_a_template_sees(tmp_path: Path, bytes_reference: Reference) -> None:
    model = recorded(
        "{% set x = x or 0 %}{% set reasoning_effort = reasoning_effort or 0 %}" + SEEN, tmp_path, bytes_reference
    )
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"b": 1, "a": [2]}'}}
    request = chat(
        messages=[
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "tool_calls": [call, {"function": {"name": "get", "arguments": "not json"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "assistant", "content": None, "reasoning_content": "hm"},
        ],
        tools=[TOOL],
        chat_template_kwargs={"x": 5},
        chat_template_args={"x": 4},
        reasoning_effort="low",
    )
    arguments = {"b": 1, "a": [2]}
    assert json.loads(model.render(request)) == {
        "m": [
            {"role": "user", "content": "a\nb", "name": "Ann"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "get", "arguments": arguments}},
                    {"type": "function", "function": {"name": "get", "arguments": {"INVALID_JSON": "not json"}}},
                ],
            },
            {"role": "tool", "content": "rain", "tool_call_id": "c1"},
            {"role": "assistant", "content": "", **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "hm")},
        ],
        "t": [TOOL],
        "x": 5,
        "e": "low",
    }
    none = json.loads(model.render(chat(tools=[TOOL], tool_choice="none", chat_template_args={"x": 4})))
    assert (none["t"], none["x"], none["e"]) == (None, 4, 0)


def test_the_tool_template_serves_requests_with_tools(tmp_path: Path, bytes_reference: Reference) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    model = recorded(templates, tmp_path, bytes_reference)  # type: ignore[arg-type]
    assert model.render(chat()) == "plain"
    assert model.render(chat(tools=[TOOL])) == "tools"
    assert model.render(chat(tools=[TOOL], tool_choice="none")) == "plain"


def test_special_tokens_in_templates(tmp_path: Path, bytes_reference: Reference) -> None:
    tokens = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|im_start|>"}
    folder = write_folder(
        tmp_path,
        bytes_reference,
        config={},
        tokenizer_config={"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}", **tokens},
    )
    model = Model.load(read_card(folder, name="t"))
    assert list(unpack(lowered(model, chat(), "i").token_ids)) == [0, 2, 1]


def test_continuing_the_last_message(model: Model) -> None:
    messages = [*HI, {"role": "assistant", "content": "Once upon "}]
    text = model.render(chat(messages=messages, continue_final_message=True))
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce upon"
    assert model.render(chat(add_generation_prompt=False)) == "<|im_start|>user\nhi<|im_end|>\n"


def test_a_broken_template_is_found_at_load(tmp_path: Path, bytes_reference: Reference) -> None:
    with pytest.raises(UserError, match="not valid"):
        recorded("{% for %}", tmp_path, bytes_reference)


def test_prepared_carries_its_field_name(model: Model) -> None:
    prepared = msgspec.structs.replace(model.prepare_prompts(completion(), ["x"])[0], prompt="字" * 600)
    with pytest.raises(BadRequest) as caught:
        model.encode(prepared, "i")
    assert caught.value.param == "prompt"


NUMBER = st.none() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, 2, -1, 0.5, 1.5])
WORD = st.text(max_size=8)
CONTENT = st.none() | WORD | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "x"]), "text": WORD}))
CALL = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": WORD, "arguments": WORD})})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", ""]), "content": CONTENT},
    optional={"name": WORD, "tool_calls": st.lists(CALL)},
)
ANY = st.recursive(
    st.none() | st.booleans() | NUMBER | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
)
COMMON: dict[str, Any] = {
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty", "n", "best_of", "seed",
         "max_tokens", "min_tokens", "length_penalty"),
        NUMBER,
    ),
    "stop": st.none() | WORD | st.lists(WORD),
    "logit_bias": st.dictionaries(WORD | st.integers(0, 600).map(str), st.floats(-101, 101), max_size=2),
    "stop_token_ids": st.lists(st.integers(0, 600), max_size=2),
    "nvext": st.fixed_dictionaries({}, optional={
        "use_raw_prompt": st.booleans(), "greed_sampling": st.booleans(), "top_k": NUMBER,
        "token_data": st.lists(st.integers(-1, 600), max_size=3),
    }),
}  # fmt: skip
CHAT: dict[str, Any] = {
    "logprobs": st.booleans(),
    "top_logprobs": NUMBER,
    "max_completion_tokens": NUMBER,
    "tools": st.lists(st.dictionaries(WORD, ANY), max_size=2),
    "tool_choice": ANY,
    "chat_template_kwargs": st.dictionaries(WORD, ANY, max_size=2),
    "continue_final_message": st.booleans(),
}


def few(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields: with all of them, one is always wrong."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


@given(messages=st.lists(MESSAGE, max_size=3) | st.just(HI), fields=few({**COMMON, **CHAT}))
def test_any_chat_request_is_lowered_or_refused(messages: list[Any], fields: dict[str, Any], model: Model) -> None:
    with suppress(msgspec.ValidationError, RequestError):
        generate = lowered(model, msgspec.convert({"messages": messages, **fields}, ChatRequest), "i")
        msgspec.msgpack.encode(generate)
        tokens = len(generate.token_ids) // 4
        assert 1 <= tokens < 512
        assert generate.stops.max_tokens
        assert generate.stops.max_tokens + tokens <= 512


@given(fields=few(COMMON), prompt=WORD | st.lists(ANY | st.integers(0, 600), max_size=4))
def test_any_completion_request_is_lowered_or_refused(fields: dict[str, Any], prompt: Any, model: Model) -> None:
    with suppress(msgspec.ValidationError, RequestError):
        msgspec.msgpack.encode(answered(model, prompt=prompt, **fields))
