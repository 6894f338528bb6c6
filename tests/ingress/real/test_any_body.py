"""Bodies nobody thought of, by HTTP to the real stack: no 500, no 422, and every error an OpenAI error object."""

import asyncio
import http.client
import json
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dynamod.message.openai import ChatRequest, CompletionRequest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
FIELDS = sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__})
OF = {CHAT: set(ChatRequest.__struct_fields__), COMPLETION: set(CompletionRequest.__struct_fields__)}

HUGE = st.sampled_from(
    [2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**40, 1e308, -1e308, 5e-324, float("inf")]
)
TEXT = st.text(max_size=8) | st.sampled_from(["", "\x00", "\ud800", "a\udfff", "😀" * 3, "<|im_end|>", "{{ 7 * 7 }}"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 300) | HUGE | st.floats() | st.floats(-2.5, 2.5) | TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
PARTS = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", ""]) | SCALARS}, optional={"text": TEXT})
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "x"]) | SCALARS},
        optional={
            "content": TEXT | st.lists(PARTS, max_size=2) | JSON,
            "name": TEXT | SCALARS,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"function": st.fixed_dictionaries({"name": TEXT}, optional={"arguments": JSON})}
                ),
                max_size=2,
            )
            | JSON,
            "tool_call_id": TEXT,
            "surprise": JSON,
        },
    ),
    max_size=3,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["function", "x"])},
        optional={
            "function": st.fixed_dictionaries({"name": TEXT}, optional={"parameters": JSON, "description": TEXT})
        },
    ),
    max_size=2,
)
PROMPTS = TEXT | st.lists(TEXT, max_size=3) | st.lists(st.integers(-1, 1100), max_size=4) | JSON
PROMPTS |= st.lists(st.lists(st.integers(0, 1023), max_size=3), max_size=3)
NVEXT = st.fixed_dictionaries(
    {},
    optional={
        "annotations": st.lists(st.sampled_from(["token_ids", "formatted_prompt", "request_id", "x"]), max_size=3)
        | JSON,
        "token_data": st.lists(st.integers(-1, 1100), max_size=3) | JSON,
        "use_raw_prompt": st.booleans() | SCALARS,
        "greed_sampling": st.booleans(),
        "ignore_eos": st.booleans(),
        "top_k": SCALARS,
        "repetition_penalty": SCALARS,
    },
)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "messages": MESSAGES,
    "prompt": PROMPTS,
    "tools": TOOLS,
    "nvext": NVEXT,
    "stop": TEXT | st.lists(TEXT, max_size=3),
    "n": st.integers(-1, 4),
    "max_tokens": st.integers(-1, 9),
    "max_completion_tokens": st.integers(-1, 9),
    "min_tokens": st.integers(-1, 9),
    "stream": st.booleans(),
    "logit_bias": st.dictionaries(st.integers(-1, 1100).map(str) | TEXT, st.floats(-120, 120) | SCALARS, max_size=3),
    "stop_token_ids": st.lists(st.integers(-1, 1100), max_size=3),
    "chat_template_kwargs": st.dictionaries(TEXT, JSON, max_size=2),
    "tool_choice": st.sampled_from(["none", "auto", "required"]) | JSON,
}
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool | None: st.booleans(),
    int | None: st.integers(-2, 40) | HUGE,
    float | None: st.floats(-2.5, 2.5) | st.integers(-1, 3) | HUGE,
    str | None: TEXT,
}
for struct in (ChatRequest, CompletionRequest):
    for name, kind in get_type_hints(struct).items():  # without the ranges
        if kind in OF_TYPE:
            FITTING.setdefault(name, OF_TYPE[kind])
GOOD = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 9}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path and a body: a good request with some fields changed, or any JSON, or any bytes; sometimes damaged."""
    path = draw(st.sampled_from([CHAT, COMPLETION]))
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return path, draw(st.binary(max_size=60))
    if kind == 1:
        return path, dumps(draw(JSON))
    fields: dict[str, Any] = {k: v for k, v in GOOD.items() if k in OF[path]}
    fields["model"] = draw(st.sampled_from(["sample", "sample", "sample", "text", "text", "other"]))
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=4)):
        if name in OF[path] or draw(st.integers(0, 5)) == 0:
            fields[name] = draw(FITTING[name] if name in FITTING and draw(st.integers(0, 7)) else JSON)
    if draw(st.booleans()):
        fields["stream"] = True
    if draw(st.integers(0, 5)) == 0:
        fields[draw(TEXT)] = draw(JSON)
    if draw(st.integers(0, 9)) == 0:
        fields.pop(draw(st.sampled_from(sorted(fields))))
    body = dumps(fields)
    if draw(st.integers(0, 19)) == 0:
        cut = draw(st.integers(0, len(body)))
        body = body[:cut] + draw(st.sampled_from([b"", b"\xff", b",", b"[" * 50, b'"'])) + body[cut:]
    return path, body


def dumps(value: Any) -> bytes:
    """As Python's json writes it: NaN, Infinity and lone surrogates included."""
    return json.dumps(value).encode()


def deep(depth: int, **fields: Any) -> bytes:
    return dumps({"model": "sample", **GOOD_CHAT, **fields})[:-1] + b',"metadata":' + b"[" * depth + b"]" * depth + b"}"


GOOD_CHAT = {"messages": GOOD["messages"], "max_tokens": 2}


def ask(port: int, path: str, body: bytes) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read()
    finally:
        connection.close()


def check_error(error: Any) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"].strip()
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)


def check(port: int, path: str, body: bytes) -> None:
    status, kind, text = ask(port, path, body)
    assert status in (200, 400, 404), text
    if kind == "text/event-stream":
        assert status == 200
        assert text.endswith(b"data: [DONE]\n\n"), text[-300:]
        return
    answer = json.loads(text)
    if status == 200:
        assert answer["choices"]
        assert all(choice["finish_reason"] in ("stop", "length") for choice in answer["choices"])
        return
    error = answer["error"]
    check_error(error)
    assert error["type"] == "invalid_request_error"
    no_fields = error["code"] == "invalid_json" or error["message"].startswith("the body must be a JSON object")
    assert (error["param"] is None) == no_fields, error


@settings(
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(bodies())
@example((CHAT, deep(500)))
@example((CHAT, deep(100_000)))
@example((CHAT, deep(100_000, model="text")))
@example((CHAT, dumps({**GOOD_CHAT, "model": "sample", "tools": json.loads("[" * 300 + "]" * 300)})))
@example((CHAT, dumps({**GOOD_CHAT, "model": "text", "messages": [{"role": "user", "content": "\ud800"}]})))
@example((COMPLETION, dumps({"model": "sample", "prompt": "\x00", "n": 128, "max_tokens": 1})))
@example((COMPLETION, dumps({"model": "sample", "prompt": [10**40]})))
@example((COMPLETION, dumps({"model": "sample", "prompt": "x", "seed": 2**63 - 1, "n": 4})))
@example((COMPLETION, dumps({"model": "sample", "prompt": ""})))
@example((COMPLETION, dumps({"model": "text", "prompt": ""})))
def test_any_body(real: Any, case: tuple[str, bytes]) -> None:
    check(real.port, *case)


@pytest.mark.parametrize("model", ["sample", "text"])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"temperature": 9}, "temperature"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (COMPLETION, {"logprobs": 0}, "logprobs"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (CHAT, {"n": 10**40}, "n"),
        (CHAT, {"stop": [1]}, "stop[0]"),
        (CHAT, {"max_tokens": "many"}, "max_tokens"),
        (COMPLETION, {"prompt": []}, "prompt"),
        (COMPLETION, {"prompt": {}}, "prompt"),
        (COMPLETION, {"prompt": ["a", 1]}, "prompt[1]"),
        (CHAT, {"nvext": {"top_k": -5}}, "nvext.top_k"),
        (CHAT, {"logit_bias": {"x": 1}}, "logit_bias"),
    ],
)
def test_the_field_is_named(real: Any, model: str, path: str, fields: dict[str, Any], param: str) -> None:
    good = {name: value for name, value in GOOD.items() if name in OF[path]}
    status, _, text = ask(real.port, path, dumps({**good, "model": model, **fields}))
    error = json.loads(text)["error"]
    check_error(error)
    assert (status, error["param"]) == (400, param)


def test_nothing_is_left_behind(real: Any) -> None:
    """Runs after the others of this file: all their requests have ended everywhere."""
    check(real.port, CHAT, dumps({**GOOD_CHAT, "model": "sample"}))
    # The answer goes out a moment before its request ends in the server's thread.
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), real.loop).result(5)
    assert real.house.processor.statistics().flights == 0
    assert [member.open for member in real.house.members] == [0, 0]
    assert real.server.inflight == 0
