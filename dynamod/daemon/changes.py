"""Whether something that `ps` shows may have changed."""

import asyncio
from collections.abc import Callable

from dynamod.transport.waiting import comes


class Changes:
    """Calls the waiters on every change."""

    def __init__(self) -> None:
        self.waiters: list[Callable[[], None]] = []

    def notify(self) -> None:
        """Something may have changed."""
        for waiter in list(self.waiters):
            waiter()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. Checks after every change, and each second."""
        changed = asyncio.Event()
        self.waiters.append(changed.set)
        try:
            while not condition():
                changed.clear()
                await comes(changed, 1.0)
        finally:
            self.waiters.remove(changed.set)
