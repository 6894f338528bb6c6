"""Tests of requests in flight run twice: with deltas, and with single tokens as transports read them from a step."""

import functools
from types import SimpleNamespace

import pytest

from dynamod.migration.base import Limits

from .instances import Air


@pytest.fixture(scope="session", params=[False, True], ids=["deltas", "columns"])
def words(request: pytest.FixtureRequest) -> SimpleNamespace:
    """For test modules, which cannot import this file."""
    return SimpleNamespace(Air=functools.partial(Air, columns=request.param), Limits=Limits)
