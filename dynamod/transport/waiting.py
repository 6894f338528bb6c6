"""Waiting with a bound."""

import asyncio


async def comes(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most so many seconds (None: forever); whether it has come."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
