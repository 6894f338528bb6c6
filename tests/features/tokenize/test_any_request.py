"""Random requests to the routes for token ids."""

from typing import Any

import pytest
from hypothesis import given

from tests.ingress.test_any_request import BODIES, FEW, TOOL, check_no_500, check_refused, check_usual

USER = {"role": "user", "content": "x"}


@FEW
@given(BODIES)
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/chat/completions/render"])
def test_no_body_causes_a_500(threaded: Any, path: str, body: bytes) -> None:
    check_no_500(threaded, path, body)


@pytest.mark.parametrize("body", [{"messages": [USER], "tools": [TOOL]}, {"prompt": ""}])
def test_usual_bodies_are_in_the_document(threaded: Any, body: dict[str, Any]) -> None:
    check_usual(threaded, "TokenizeRequest", body)


@pytest.mark.parametrize(
    "body", [{}, {"messages": [{"role": "assistant", "content": ""}], "continue_final_message": True}]
)
def test_what_is_refused_is_not_in_the_document(body: dict[str, Any]) -> None:
    check_refused("TokenizeRequest", body)
