"""Work in a thread that the end of the process does not wait for: an engine's start may take minutes."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Start the work; its result or exception comes to the event loop, if that still runs then."""
    loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(call: Callable[..., object], value: object) -> None:
        try:
            loop.call_soon_threadsafe(lambda: None if future.done() else call(value))
        except RuntimeError:  # the loop has been closed meanwhile
            pass

    def run() -> None:
        try:
            tell(future.set_result, work())
        except BaseException as error:
            tell(future.set_exception, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
