"""Random requests to Ollama's routes."""

from typing import Any

import pytest
from hypothesis import given

from tests.ingress.test_any_request import BODIES, FEW, TOOL, check_no_500, check_refused, check_usual

USER = {"role": "user", "content": "x"}


@FEW
@given(BODIES)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"])
def test_no_body_causes_a_500(threaded: Any, path: str, body: bytes) -> None:
    check_no_500(threaded, path, body, None)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("OllamaChatRequest", {"messages": [USER], "tools": [TOOL], "think": "low", "options": {"num_ctx": 1}}),
        ("OllamaGenerateRequest", {"prompt": "x", "format": {"type": "object"}, "options": {"stop": "a"}}),
    ],
)
def test_usual_bodies_are_in_the_document(threaded: Any, name: str, body: dict[str, Any]) -> None:
    check_usual(threaded, name, body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("OllamaChatRequest", {"messages": [{**USER, "images": ["x"]}]}),
        ("OllamaChatRequest", {"messages": [USER], "top_logprobs": 2}),
        ("OllamaGenerateRequest", {"prompt": "x", "template": "t"}),
        ("OllamaGenerateRequest", {"prompt": "x", "context": [1]}),
    ],
)
def test_what_is_refused_is_not_in_the_document(name: str, body: dict[str, Any]) -> None:
    check_refused(name, body)
