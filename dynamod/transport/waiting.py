"""Waiting with a bound, and whether a wait is to end."""

import asyncio


async def comes(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most so many seconds (None: forever); whether it has come."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def cancelled() -> bool:
    """Whether the current task is being cancelled. Libraries raise CancelledError on their own, too, or swallow it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
