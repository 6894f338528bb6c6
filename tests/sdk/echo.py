"""A worker's handlers that give back what they get."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dynamo.runtime import Context


class Echo:
    def __init__(self) -> None:
        self.running = 0
        self.begun = asyncio.Event()
        self.contexts: list[Context] = []

    async def generate(self, request: Any) -> AsyncIterator[Any]:
        for item in request:
            yield item

    async def forever(self, request: Any, context: Context) -> AsyncIterator[int]:
        self.running += 1
        self.contexts.append(context)
        self.begun.set()
        try:
            for number in range(10**9):
                yield number
                await asyncio.wait([context.async_killed_or_stopped()], timeout=0.005)
                if context.is_stopped():
                    return
        finally:
            self.running -= 1

    async def slow(self, request: float) -> AsyncIterator[str]:
        self.begun.set()
        yield "first"
        await asyncio.sleep(request)
        yield "last"
