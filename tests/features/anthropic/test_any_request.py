"""Random requests to the routes of messages."""

from typing import Any

import pytest
from hypothesis import given

from tests.ingress.test_any_request import BODIES, FEW, PARTS, check_no_500, check_refused, check_usual

USE = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
TURNS = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, *PARTS, USE]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": PARTS, "is_error": False}]},
]
TOOL_OF_CLIENT = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {}}


@FEW
@given(BODIES)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_no_body_causes_a_500(threaded: Any, path: str, body: bytes) -> None:
    check_no_500(threaded, path, body, {"message", "type"})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("MessagesRequest", {"messages": TURNS, "max_tokens": 9, "system": PARTS, "tools": [TOOL_OF_CLIENT]}),
        (
            "MessagesRequest",
            {"messages": TURNS[:1], "max_tokens": 9, "stream": True, "thinking": {"type": "enabled"}, "beta": 1},
        ),
        (
            "MessagesRequest",
            {"messages": TURNS[:1], "max_tokens": 9, "tools": [TOOL_OF_CLIENT], "tool_choice": {"type": "any"}},
        ),
        ("CountTokensRequest", {"messages": TURNS, "tools": [TOOL_OF_CLIENT]}),
    ],
)
def test_usual_bodies_are_in_the_document(threaded: Any, name: str, body: dict[str, Any]) -> None:
    check_usual(threaded, name, body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("MessagesRequest", {"messages": TURNS}),
        ("MessagesRequest", {"messages": [{"role": "user", "content": [IMAGE]}], "max_tokens": 1}),
        ("MessagesRequest", {"messages": TURNS, "max_tokens": 1, "tool_choice": {"type": "any"}}),
        ("MessagesRequest", {"messages": TURNS, "max_tokens": 1, "mcp_servers": [{}]}),
        ("CountTokensRequest", {"messages": TURNS, "tools": [TOOL_OF_CLIENT], "tool_choice": {"type": "tool"}}),
        ("MessagesRequest", {"messages": TURNS, "max_tokens": 1, "thread": {"type": "create"}}),
    ],
)
def test_what_is_refused_is_not_in_the_document(name: str, body: dict[str, Any]) -> None:
    check_refused(name, body)
