"""Work on large requests happens in a thread, one after the other: two would keep the event loop waiting twice."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREAD = ThreadPoolExecutor(1, "large-requests")


async def apart(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """The result of a call in that thread, whose log lines carry the request's id as here."""
    call = partial(contextvars.copy_context().run, work, *arguments, **options)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, call)
