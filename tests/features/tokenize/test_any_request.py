"""Requests nobody thought of, to the routes for token ids."""

from typing import Any

import pytest
from hypothesis import given

from tests.ingress.test_any_request import BODIES, FEW, check_no_500


@FEW
@given(BODIES)
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_no_body_causes_a_500(threaded: Any, path: str, body: bytes) -> None:
    check_no_500(threaded, path, body)
