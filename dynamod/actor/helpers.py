"""The tasks of one actor alongside the task that handles its messages."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any


class Helpers:
    """`group`: the task group of the actor while it runs. `failed(error)`: called when a helper raises."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.group: asyncio.TaskGroup | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self._failed = failed

    def start(self, work: Coroutine[Any, Any, Any], label: str, context: contextvars.Context) -> asyncio.Task[Any]:
        """Start a helper task. The group must run."""
        assert self.group is not None
        task = self.group.create_task(self._help(work), name=label, context=context)
        self.tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self.tasks.discard(task)
            work.close()  # a task that is cancelled before its first step has never awaited it

        task.add_done_callback(ended)
        return task

    async def _help(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except Exception as error:
            self._failed(error)
            return None

    def cancel(self) -> None:
        """Cancel all helpers."""
        for task in self.tasks:
            task.cancel()
