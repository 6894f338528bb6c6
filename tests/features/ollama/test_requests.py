"""What requests of Ollama's API mean as chats and completions."""

import logging
from typing import Any

import msgspec
import pytest

from dynamod.features.ollama import options
from dynamod.features.ollama.errors import error_value
from dynamod.features.ollama.messages import NamedModel, OllamaChatRequest, OllamaGenerateRequest
from dynamod.features.ollama.named import plain
from dynamod.features.ollama.translate import check, to_chat, to_completion
from dynamod.message.errors import BadRequest, NotFound
from dynamod.preprocess.conversation import check_messages

USER = {"role": "user", "content": "Hi"}


def chat_of(**fields: Any) -> Any:
    request = msgspec.convert({"messages": [USER], **fields}, OllamaChatRequest)
    check(request)
    chat = to_chat(request)
    check_messages(chat.messages)
    return chat


def generate_of(**fields: Any) -> OllamaGenerateRequest:
    request = msgspec.convert({"prompt": "p", **fields}, OllamaGenerateRequest)
    check(request)
    return request


def test_fields() -> None:
    given = {
        "num_predict": 7,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["a"],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "num_ctx": 4096,
    }
    chat = chat_of(model="m", options=given, keep_alive="5m", nvext={"top_k": 3})
    assert (chat.model, chat.max_tokens, chat.temperature, chat.top_k, chat.top_p) == ("m", 7, 0.5, 4, 0.9)
    assert (chat.min_p, chat.seed, chat.stop, chat.repetition_penalty) == (0.1, 3, ["a"], 1.1)
    assert (chat.presence_penalty, chat.frequency_penalty, chat.keep_alive) == (0.2, 0.3, "5m")
    assert chat.nvext is not None
    assert chat.stream is True, "without `stream` it is a stream"
    assert chat_of(stream=False).stream is False


@pytest.mark.parametrize("count", [-2, -1, 0])
def test_as_many_tokens_as_fit(count: int) -> None:
    assert chat_of(options={"num_predict": count}).max_tokens is None


@pytest.mark.parametrize(
    ("name", "value"), [("num_predict", 2**31), ("temperature", 3), ("top_p", -1), ("stop", [""]), ("seed", "x")]
)
def test_options_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        chat_of(options={name: value})


def test_options_without_effect_have_one_line(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(options, "_told", set())
    with caplog.at_level(logging.INFO, "dynamod.frontend"):
        for _ in range(3):
            chat_of(options={"num_ctx": 4096, "mirostat": 1, "num_gpu": None})
    assert len(caplog.records) == 2
    assert "`num_ctx`" in caplog.text
    assert "`mirostat`" in caplog.text


def test_every_option_is_mapped_or_says_why_not() -> None:
    mapped = {*options._SAME, "num_predict", "repeat_penalty"}
    assert {*options.OllamaOptions.__struct_fields__} == mapped | options.IGNORED.keys()


def test_results_find_their_calls() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    said = [
        USER,
        {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [call, {"function": {"name": "g"}}]},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f"},
        {"role": "tool", "content": "of none"},
        {"role": "assistant", "tool_calls": [{"id": "own", **call}]},
        {"role": "tool", "content": "x", "tool_call_id": "own"},
    ]
    chat = chat_of(messages=said)
    first, g, f, other, second, own = chat.messages[1:]
    ids = [one.id for one in first.tool_calls]
    assert len({*ids}) == 2
    assert (g.tool_call_id, f.tool_call_id) == (ids[1], ids[0])
    assert (g.name, f.name) == ("g", "f")
    assert other.tool_call_id not in ids
    assert first.content is None
    assert first.reasoning_content == "t"
    assert first.tool_calls[0].function.arguments == '{"x":1}'
    assert second.tool_calls[0].id == own.tool_call_id == "own"


def test_an_answer_that_has_begun_is_continued() -> None:
    chat = chat_of(messages=[USER, {"role": "assistant", "content": "Once"}])
    assert chat.continue_final_message
    assert not chat_of().continue_final_message


@pytest.mark.parametrize(
    ("form", "kind", "schema"),
    [("", None, None), ("json", "json_object", None), ({"type": "object"}, "json_schema", {"type": "object"})],
)
def test_forms(form: Any, kind: Any, schema: Any) -> None:
    found = chat_of(format=form).response_format
    assert (found and found.type) == kind
    assert schema is None or found.json_schema["schema"] == schema


@pytest.mark.parametrize(
    ("think", "on", "effort"), [(True, True, None), (False, False, None), ("low", True, "low"), (None, None, None)]
)
def test_thinking(think: Any, on: Any, effort: Any) -> None:
    chat = chat_of(think=think)
    assert chat.reasoning_effort == effort
    assert chat.chat_template_kwargs == (None if on is None else {"enable_thinking": on, "thinking": on})


def test_a_prompt_is_a_chat_or_a_completion() -> None:
    chat = to_chat(generate_of(system="s", options={"num_predict": 5}))
    assert [(one.role, one.content) for one in chat.messages] == [("system", "s"), ("user", "p")]
    assert chat.max_tokens == 5
    completion = to_completion(generate_of(raw=True, suffix="after", logprobs=True, top_logprobs=2))
    assert (completion.prompt, completion.suffix, completion.logprobs, completion.max_tokens) == ("p", "after", 2, None)
    assert to_completion(generate_of(raw=True)).logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"images": ["x"]}, "images"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1]}, "context"),
        ({"width": 1}, "width"),
        ({"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_refused_prompts(fields: Any, param: str) -> None:
    with pytest.raises(BadRequest) as error:
        generate_of(**fields)
    assert error.value.param == param


def test_images_of_messages_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"messages\[1\]\.images"):
        chat_of(messages=[USER, {"role": "user", "content": "x", "images": ["aGk="]}])
    assert chat_of(messages=[{**USER, "images": []}])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a", "a"),
        ("a:latest", "a"),
        ("b:latest", "b:latest"),
        ("hf.co/org/c:Q4_0", "org/c:Q4_0"),
        ("other:7b", "other:7b"),
        ("", ""),
    ],
)
def test_names(name: str, found: str) -> None:
    assert plain(name, dict.fromkeys(("a", "b:latest", "org/c:Q4_0"))) == found


def test_older_clients_call_the_model_name() -> None:
    assert msgspec.convert({"name": "m"}, NamedModel).model == "m"
    assert msgspec.convert({"name": "x", "model": "m"}, NamedModel).model == "m"


def test_errors() -> None:
    assert error_value(BadRequest("no", param="x")) == {"error": "no"}
    assert "not found" in error_value(NotFound("the model `x` does not exist"))["error"]
