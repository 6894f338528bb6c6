"""The server that misbehaves, in this process."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestServer

from ...ports import free_port
from .misbehaving import Misbehaving


@pytest.fixture
async def server() -> AsyncIterator[SimpleNamespace]:
    """`url`, and the server itself as `is_`."""
    misbehaving = Misbehaving()
    async with TestServer(misbehaving.app, port=free_port()) as test:
        yield SimpleNamespace(url=f"http://127.0.0.1:{test.port}/v1", is_=misbehaving, test=test)
