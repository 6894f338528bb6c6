"""Workers run on uvloop, whose transports differ from asyncio's: real sockets are tried on both."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from dynamod.features.prefill.transfer import nixl


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    names = ("test_transfer", "test_faults", "test_shared_memory", "test_nixl", "test_tls")
    both = any(name in item.nodeid for name in names)
    return {"asyncio": asyncio.new_event_loop} | ({"uvloop": uvloop.new_event_loop} if both else {})


@pytest.fixture(autouse=True)
def _nixl_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NIXL is installed, it is tried without the cards that it is for."""
    monkeypatch.setattr(nixl, "DEVICES", Path("/"))
