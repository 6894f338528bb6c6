"""Calling what the user wrote: functions and methods, generators or not, with a context or without."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, nullcontext
from typing import Any

from dynamod.message.errors import RequestError, UserError
from dynamod.transport.base import Reply
from dynamod.transport.waiting import cancelled

from .context import Context

log = logging.getLogger("dynamod.python")

GRACE = 2.0
"""Seconds that a handler has to end on its own once its context is stopped; then it is cancelled. One that takes no
context cannot know, and is cancelled at once."""


MASK = "mask"
"""Name of the parameter of a handler that keeps to forms."""


class Handler:
    """A user's function for an endpoint. `place`: how it takes a context, "keyword" or "position", None: not at all.
    `masks`: it takes a `mask`, by name, and keeps to it.

    Raises UserError for what cannot be one.
    """

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        name = name or getattr(function, "__qualname__", None) or type(function).__qualname__
        if not callable(function):
            raise UserError(f"{function!r} cannot be called", "give serve_endpoint a function or a method")
        if inspect.isgeneratorfunction(inspect.unwrap(function)):
            raise UserError(f"{name} is a generator that blocks its process", "write `async def`")
        self.name = str(name)
        self._function = function
        self.place, self.masks = _place_of_context(function), MASK in {one.name for one in _by_name(function)}

    async def answers(self, request: Any, context: Context, mask: Any = None) -> AsyncGenerator[Any, None]:
        """What it yields, or the one value that it returns. `mask`: for a handler that takes one."""
        more = {MASK: mask} if self.masks else {}
        if self.place == "keyword":
            made = self._function(request, context=context, **more)
        else:
            made = self._function(request, context, **more) if self.place else self._function(request, **more)
        if inspect.isawaitable(made):
            made = await made
        if not hasattr(made, "__aiter__"):
            yield made
            return
        iterator = made.__aiter__()
        async with aclosing(iterator) if hasattr(iterator, "aclose") else nullcontext():
            async for item in iterator:
                yield item


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in another language
        return []


def _by_name(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters after the request that can be given by their names."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one for one in _parameters(function)[1:] if one.kind in kinds]


def _place_of_context(function: Callable[..., Any]) -> str | None:
    if any(one.name == "context" for one in _by_name(function)):
        return "keyword"
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in _parameters(function) if one.kind in places and one.default is one.empty]
    needed = [one for one in needed if one.name != MASK or one.kind is one.POSITIONAL_ONLY]
    return "position" if len(needed) > 1 else None


_BUGS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What the same request raises again: a 500, which clients do not repeat as they repeat a 502."""

Take = Callable[[Any], float | None]
"""Takes an item. Returns the seconds that the handler may still yield: None any, 0 it is over.

Raises RequestError for an item that is none.
"""


class Calls:
    """The requests that a handler works on, each a task of the endpoint's actor; each ends with its reader.

    `private`: the callers are clients from outside, and errors do not contain the text of an exception.
    """

    def __init__(
        self,
        handler: Handler,
        spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
        *,
        private: bool = False,
    ) -> None:
        self._handler, self._spawn, self._private = handler, spawn, private
        self._contexts: dict[asyncio.Task[Any], Context] = {}
        self.begun = 0

    def __len__(self) -> int:
        return len(self._contexts)

    def begin(
        self, number: str, request: Any, reply: Reply, take: Take, end: Callable[[], None], mask: Any = None
    ) -> None:
        """Start a call; `end` is called when the handler has ended. All errors go to the reply."""
        self.begun += 1
        context = Context(number)
        task = self._spawn(self._call(context, request, reply, take, end, mask), f"call {number}")
        self._contexts[task] = context
        task.add_done_callback(self._contexts.pop)
        reply.on_cancel(lambda: self._left(task, context))

    def stop(self) -> None:
        """Tell all contexts that their readers have left. The tasks end with their actor."""
        for context in list(self._contexts.values()):
            context.kill()

    def _left(self, task: asyncio.Task[Any], context: Context) -> None:
        context.kill()
        if self._handler.place is None:
            task.cancel()
            return
        timer = asyncio.get_running_loop().call_later(GRACE, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())

    async def _call(
        self, context: Context, request: Any, reply: Reply, take: Take, end: Callable[[], None], mask: Any
    ) -> None:
        name = self._handler.name
        try:
            try:
                async with (
                    asyncio.timeout(None) as bound,
                    aclosing(self._handler.answers(request, context, mask)) as items,
                ):
                    async for item in items:
                        left = None if reply.cancelled else take(item)  # a handler may continue without a reader
                        if left == 0:
                            break
                        if left is not None and bound.when() is None:
                            bound.reschedule(asyncio.get_running_loop().time() + left)
                        await asyncio.sleep(0)  # a handler that waits for nothing must not keep all others waiting
            except TimeoutError:
                if not bound.expired():
                    raise
            end()
        except RequestError as error:
            log.warning("request %s: %s", context.id(), error)
            reply.raised(error)
        except BaseException as error:  # the user's code: the caller gets the error, the log the traceback
            if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and cancelled()):
                raise  # by us: the reader has left, or the engine ends
            log.exception("%s failed (request %s)", name, context.id())
            if self._private:
                text = f"{name} raised {type(error).__name__}; the worker's log has more under this request's id"
                reply.failed("Internal" if isinstance(error, _BUGS) else "EngineFailed", text)
            else:
                reply.failed("EngineFailed", f"{name}: {type(error).__name__}: {error}")
