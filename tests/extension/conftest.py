"""Toy features in place of those that are installed, and workers and processors in which they have parts."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod import features
from dynamod.extension.installed import VARIABLE, installed
from dynamod.ingress.api import table

from ..engine.conftest import words
from ..ingress.conftest import until
from ..ingress.real.conftest import cache, house, pace, serve

__all__ = ["cache", "house", "pace", "serve", "toys", "until", "words"]

TOYS = Path(__file__).parent / "toys"


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The features of `toys/` are installed, and no others."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(features, "__path__", [str(TOYS)])
    monkeypatch.setattr("dynamod.extension.installed.FOLDER", TOYS)
    installed.cache_clear()
    monkeypatch.setattr(table, "ENDPOINTS", tuple(type(one)() for one in table.ENDPOINTS))  # requests with their fields
    yield
    installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("dynamod.features.")]:
        if sys.modules[name].__file__ is not None and Path(str(sys.modules[name].__file__)).is_relative_to(TOYS):
            del sys.modules[name]
