"""The end of a thread that works for an event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


async def last_work(thread: ThreadPoolExecutor, work: Callable[[], object], seconds: float) -> bool:
    """Have a thread do its last work, after what it does now; whether it was done within so many seconds.

    A thread that hangs is given up. What `work` raises is raised here.
    """
    done = thread.submit(work)
    thread.shutdown(wait=False)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(done)
    except TimeoutError:
        return False
    return True
