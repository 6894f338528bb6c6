"""Random requests to the routes of responses."""

from typing import Any

import pytest
from hypothesis import given

from tests.ingress.test_any_request import BODIES, FEW, check_no_500, check_refused, check_usual

ITEMS = [
    {"role": "user", "content": "x"},
    {"type": "reasoning", "id": "1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "y"}]},
]
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


@FEW
@given(BODIES)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_no_body_causes_a_500(threaded: Any, path: str, body: bytes) -> None:
    check_no_500(threaded, path, body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ResponsesRequest", {"input": "x", "stream": True, "text": {"format": {"type": "text"}}}),
        ("ResponsesRequest", {"input": ITEMS, "tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}),
    ],
)
def test_usual_bodies_are_in_the_document(threaded: Any, name: str, body: dict[str, Any]) -> None:
    check_usual(threaded, name, body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ResponsesRequest", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("ResponsesRequest", {"input": [{"type": "item_reference"}]}),
        ("ResponsesRequest", {"input": "x", "tools": [{"type": "telepathy"}]}),
        ("ResponsesRequest", {"input": "x", "background": True}),
    ],
)
def test_what_is_refused_is_not_in_the_document(name: str, body: dict[str, Any]) -> None:
    check_refused(name, body)
