"""The fake API server itself."""

import asyncio
import gc
import socket
import warnings

import pytest

from .fake_api import FakeApi


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_comes_while_the_server_stops_is_closed(turns: int) -> None:
    """Whatever turn of the loop accepts it: a connection that is left open fails the test that runs next."""

    async def stopped() -> socket.socket:
        api = FakeApi()
        await api.start()
        client = socket.create_connection(("127.0.0.1", api.port), 5)
        for _ in range(turns):
            await asyncio.sleep(0)
        await api.stop()
        return client

    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        with asyncio.run(stopped()):
            gc.collect()
    assert [str(one.message) for one in left] == []
