"""`return_token_ids`: the ids of prompts and answers, in vLLM's form, whole and streamed."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TEXTS = ["Hello, world 😀", "one"]


def post(port: int, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def chunks(port: int, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    status, text = post(port, path, body | {"stream": True})
    assert status == 200, text
    return (json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {"))


def ids_of(real: Any, text: str) -> list[int]:
    return list(real.house.backend.model("sample").tokenizer.encode(text))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stop": "wor"},
        {"echo": True},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
def test_completions(real: Any, more: dict[str, Any]) -> None:
    """echo_core says the ids of the prompt again."""
    body = {"model": "sample", "prompt": TEXTS, "n": 2, "max_tokens": 50, "return_token_ids": True, **more}
    whole = json.loads(post(real.port, COMPLETION, {k: v for k, v in body.items() if k != "stream_options"})[1])
    streamed: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks(real.port, COMPLETION, body):
        assert "prompt_token_ids" not in chunk
        for part in chunk["choices"]:
            streamed.setdefault(part["index"], []).append(part)
    for choice in whole["choices"]:
        sent = ids_of(real, TEXTS[choice["index"] // 2])
        assert choice["prompt_token_ids"] == sent
        ids = choice["token_ids"]
        assert ids == sent[: len(ids)]
        assert "stop" in more or len(ids) == len(sent)
        first, *rest = parts = streamed[choice["index"]]
        assert first["prompt_token_ids"] == sent
        assert all(part["prompt_token_ids"] is None for part in rest)
        assert [index for part in parts for index in part["token_ids"]] == ids
    assert whole["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in whole["choices"])


def test_chats(real: Any) -> None:
    body = {"model": "sample", "messages": [{"role": "user", "content": "Hello 😀"}], "return_token_ids": True}
    whole = json.loads(post(real.port, CHAT, body)[1])
    (choice,) = whole["choices"]
    assert len(choice["token_ids"]) == whole["usage"]["completion_tokens"]
    first, *rest = chunks(real.port, CHAT, body)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in rest)
    ids = [index for chunk in (first, *rest) for part in chunk["choices"] for index in part["token_ids"]]
    assert ids == choice["token_ids"]


def test_who_does_not_ask_gets_none(real: Any) -> None:
    for path, more in ((CHAT, {"messages": [{"role": "user", "content": "x"}]}), (COMPLETION, {"prompt": "x"})):
        body = {"model": "sample", "max_tokens": 2, "return_token_ids": False, **more}
        status, text = post(real.port, path, body)
        assert (status, "token_ids" in text) == (200, False)
        status, text = post(real.port, path, body | {"stream": True})
        assert (status, "token_ids" in text) == (200, False)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_an_engine_that_answers_in_text_has_none(real: Any, path: str) -> None:
    body = {"model": "text", "messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    status, text = post(real.port, path, {"model": "text", **body, "return_token_ids": True})
    error = json.loads(text)["error"]
    assert (status, error["param"], error["code"]) == (400, "return_token_ids", "unsupported_parameter")
