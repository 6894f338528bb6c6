"""A thread that the end of the process does not wait for: an engine's start may take minutes."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Apart:
    """Does one thing after the other. It stays as long as the process: what has been started in a thread may be ended
    by the kernel with that thread (PR_SET_PDEATHSIG).
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Its result or exception comes to the event loop, if that still runs then."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(call: Callable[[Any], object], value: object) -> None:
            try:
                loop.call_soon_threadsafe(lambda: None if future.done() else call(value))
            except RuntimeError:  # the loop has been closed meanwhile
                pass

        def run() -> None:
            try:
                tell(future.set_result, work())
            except BaseException as error:
                tell(future.set_exception, error)

        self._work.put(run)
        return future

    def _run(self) -> None:
        while True:
            self._work.get()()
