"""What `depends(Other)` becomes in a running service: its endpoints as attributes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from dynamod.discovery.keys import Address
from dynamod.message.errors import Overloaded

from .context import ProcessContext
from .endpoint_client import Client

WAIT_FOR_INSTANCE = 30.0
"""Seconds a call waits for the first instance: components of a graph start at the same time."""


class DependencyEndpoint:
    """`async for item in endpoint(request)`. Instances take turns."""

    def __init__(self, process_context: ProcessContext, address: Address) -> None:
        self._address = address
        self._client = Client(process_context, address, static=False)
        self._opening: asyncio.Lock = asyncio.Lock()
        self._open = False

    async def __call__(self, request: Any = None) -> AsyncIterator[Any]:
        """Call the endpoint and yield what it yields. Raises RequestError."""
        async with self._opening:
            if not self._open:
                await self._client.open()
                self._open = True
        try:
            await self._client.wait_for_instances(WAIT_FOR_INSTANCE)
        except TimeoutError:
            raise Overloaded(f"no instance of {self._address} after {WAIT_FOR_INSTANCE:g} s") from None
        async with aclosing(self._client.round_robin(request, annotated=False)) as items:
            async for item in items:
                yield item


class Dependency:
    """All endpoints of a dependency: `self.worker.generate(request)`."""

    def __init__(self, process_context: ProcessContext, dependency: Mapping[str, Any]) -> None:
        self._service = dependency["service"]
        place = dependency["namespace"], dependency["component"]
        self._endpoints = {
            name: DependencyEndpoint(process_context, Address(*place, name)) for name in dependency["endpoints"]
        }

    def __getattr__(self, name: str) -> DependencyEndpoint:
        client = self._endpoints.get(name)
        if client is None:
            known = ", ".join(sorted(self._endpoints)) or "none"
            raise AttributeError(f"{self._service} has no endpoint '{name}'; it has: {known}")
        return client

    def __getitem__(self, name: str) -> DependencyEndpoint:
        """An endpoint whose name is no identifier, such as `chat/completions`."""
        return self.__getattr__(name)
