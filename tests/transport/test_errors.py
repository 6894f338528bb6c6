"""Errors of one process as they reach another."""

import msgspec
import pytest

from dynamod.message.errors import REQUEST_ERRORS, EngineFailed, RequestError
from dynamod.message.ingress import Delta, Failed

ERRORS = sorted(REQUEST_ERRORS.values(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ERRORS)
def test_nothing_of_an_error_is_lost(kind: type[RequestError]) -> None:
    error = kind("because", param="n", code="mine", retry_after=2.5)
    wire = msgspec.msgpack.encode(Failed.of(7, error, retry=True))
    failed = msgspec.msgpack.decode(wire, type=Delta)
    assert isinstance(failed, Failed)
    assert (failed.stream, failed.retry) == (7, True)
    again = failed.exception()
    assert type(again) is kind
    assert (str(again), again.param, again.code, again.retry_after) == ("because", "n", "mine", 2.5)


def test_an_error_that_nobody_knows_is_an_engines() -> None:
    class Mine(RequestError):
        """A user's own."""

    assert type(Failed.of(1, Mine("x")).exception()) is EngineFailed
