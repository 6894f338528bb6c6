"""Virtual time: a loop whose clock jumps to the next timer, so that tests of timeouts take no wall time.

`run(main)` runs a coroutine in such a loop and fails when a task is left over. A test that would wait forever (no
timer, nothing ready) raises Deadlock instead of hanging. Sockets and threads do not belong into virtual time.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Deadlock(AssertionError):
    """Every task waits, and no timer will ever wake one."""


class LeakedTasks(AssertionError):
    """Tasks were still alive when the main coroutine ended."""


class _JumpingSelector(selectors.SelectSelector):
    """Never sleeps: where select would wait, it moves the loop's clock instead."""

    def __init__(self, clock: "VirtualLoop") -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready files at once; else let virtual time pass."""
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock("all tasks wait and no timer is set:\n" + self._clock.describe())
        self._clock.advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, starting at 1,000 s."""

    def __init__(self) -> None:
        self._virtual_now = 1000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual monotonic seconds."""
        return self._virtual_now

    def advance(self, seconds: float) -> None:
        """Let time pass. The smallest step is one nanosecond, so that rounding cannot stall the clock."""
        if seconds > 0:
            self._virtual_now += max(seconds, 1e-9)

    def describe(self) -> str:
        """The tasks that are alive."""
        return "\n".join(repr(task) for task in asyncio.all_tasks(self))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in virtual time and return its result. Raises LeakedTasks when it leaves a task running."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main)
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if left:
            raise LeakedTasks("\n".join(repr(task) for task in left))
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(_settle())
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


async def _settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorate an async test so that it runs in virtual time."""

    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapped
