"""/tokenize and /detokenize beside the routes that generate, with the real stack behind HTTP."""

from typing import Any

import pytest

from tests.ingress.real.asking import post

USER = [{"role": "user", "content": "Once upon a time"}]


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/chat/completions", {"messages": USER}), ("/v1/completions", {"prompt": "Once upon"})]
)
def test_ids_are_those_that_an_answer_is_made_from(real, path: str, asked: dict[str, Any]) -> None:
    status, tokens = post(real.port, "/tokenize", model="sample", **asked)
    assert status == 200
    _, whole = post(real.port, path, model="sample", max_tokens=1, **asked)
    assert whole["usage"]["prompt_tokens"] == tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == real.house.processor.cards["sample"].context_length
    status, text = post(real.port, "/detokenize", model="sample", tokens=tokens["tokens"])
    assert status == 200
    assert "Once upon" in text["prompt"]
    _, same = post(real.port, "/v1/completions", model="sample", prompt=tokens["tokens"], max_tokens=1)
    assert same["usage"] == whole["usage"]


def test_models_without_a_tokenizer_here(real) -> None:
    for path, fields in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert post(real.port, path, model="text", **fields)[0] == 400
        assert post(real.port, path, model="none", **fields)[0] == 404
        assert post(real.port, path, **fields)[0] == 400  # two models are served


def test_a_chat_is_rendered_to_the_prompt_of_its_answer(real) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    for more in ({}, {"tools": tools}, {"add_generation_prompt": False}, {"continue_final_message": True}):
        status, rendered = post(
            real.port, "/v1/chat/completions/render", model="sample", messages=USER, max_tokens=1, **more
        )
        assert status == 200, rendered
        _, tokens = post(real.port, "/tokenize", model="sample", messages=USER, **more)
        assert rendered["token_ids"] == tokens["tokens"]
        assert rendered["max_model_len"] == tokens["max_model_len"]
        assert "Once upon a time" in rendered["prompt"]
        _, text = post(real.port, "/detokenize", model="sample", tokens=rendered["token_ids"])
        assert text["prompt"] == rendered["prompt"]
    path = "/v1/chat/completions/render"
    assert post(real.port, path, model="text", messages=USER)[0] == 400
    status, wrong = post(real.port, path, model="sample", messages=USER, temperature=3)
    assert (status, wrong["error"]["param"]) == (400, "temperature")
    status, wrong = post(real.port, path, model="sample", messages=[{"role": "user", "content": "one " * 3000}])
    assert (status, wrong["error"]["code"]) == (400, "context_length_exceeded")


def test_the_ids_of_a_chats_prompt_are_those_that_render_says(real) -> None:
    body = {"model": "sample", "messages": [{"role": "user", "content": "Hello 😀"}]}
    _, whole = post(real.port, "/v1/chat/completions", **body, return_token_ids=True)
    _, rendered = post(real.port, "/v1/chat/completions/render", **body, return_token_ids=False)
    assert whole["prompt_token_ids"] == rendered["token_ids"]
