"""Workers run on uvloop, whose transports differ from asyncio's: real sockets are tried on both."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    both = any(name in item.nodeid for name in ("test_transfer", "test_faults", "test_shared_memory"))
    return {"asyncio": asyncio.new_event_loop} | ({"uvloop": uvloop.new_event_loop} if both else {})
