"""What a worker waits for before its engine and the parts of features are made."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.runtime.components.worker import WorkerComponent


class Registry:
    """Of a process whose daemon has not greeted it yet."""

    def __init__(self) -> None:
        self.greeted = asyncio.Event()

    async def leased(self, timeout: float) -> int:
        await self.greeted.wait()
        return 1


class Found(Exception):
    """The component has come to the search for its model."""


class Worker(WorkerComponent):
    async def _find_model(self, mode: Any, host: str) -> None:
        raise Found(host)


async def test_the_greeting_of_the_daemon_comes_first() -> None:
    """The greeting has the address and the certificates of the node; a prefill worker tells the address once."""
    registry, host = Registry(), "127.0.0.1"
    process = SimpleNamespace(registry=registry, host=lambda: host, heartbeat=None)
    service = SimpleNamespace(role="prefill", spec={"component_type": "worker"})
    context: Any = SimpleNamespace(
        process_context=process, service=service, config={"engine": "echo_core"}, name="Worker", withdraw=lambda: None
    )
    start = asyncio.ensure_future(Worker(context).started())
    await asyncio.sleep(0)
    assert not start.done()
    host = "10.0.0.7"
    registry.greeted.set()
    with pytest.raises(Found, match=r"10\.0\.0\.7"):
        await start
