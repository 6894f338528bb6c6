"""`@dynamo_worker` and `@dynamo_endpoint`."""

import asyncio
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dynamod.message.errors import UserError

from .runtime import DistributedRuntime

WorkerFunction = Callable[..., Awaitable[Any]]


def dynamo_worker(static: bool = False) -> Callable[[WorkerFunction], Callable[..., Awaitable[Any]]]:
    """Give an async function a `DistributedRuntime` as its first argument, on the loop that runs it.

    Several may run in one loop: they share the process's place in the node, which is left when the last has returned.
    A function that serves nothing when the process is told to end is cancelled, and the call returns None.
    """
    if not isinstance(static, bool):
        raise UserError("dynamo_worker takes static=True or False", "write @dynamo_worker() with parentheses")

    def decorate(function: WorkerFunction) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(function)
        async def worker(*args: Any, **kwargs: Any) -> Any:
            runtime = DistributedRuntime(asyncio.get_running_loop(), static)
            task = asyncio.current_task()
            try:
                await runtime.connect()
                runtime.task = task
                return await function(runtime, *args, **kwargs)
            except asyncio.CancelledError:
                if runtime.cancelled and task is not None and task.uncancel() <= 0:
                    return None
                raise
            except UserError as error:
                if error.hint:
                    error.add_note(error.hint)  # a traceback shows the message alone
                raise
            finally:
                await runtime.close()

        return worker

    return decorate


def dynamo_endpoint(
    request_model: Any, response_model: Any = None
) -> Callable[[Callable[..., Any]], Callable[..., AsyncIterator[Any]]]:
    """Parse the request, a dict or JSON text, into a pydantic model before the function sees it.

    For `(request)`, `(self, request)` and both with a context at the end. Answers are not checked. Raises ValueError at
    the first item when the request does not fit.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        names = list(inspect.signature(function).parameters)
        place = 1 if names[:1] in (["self"], ["cls"]) else 0

        @functools.wraps(function)
        async def endpoint(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            given = list(args)
            if len(given) > place:
                given[place] = _parsed(request_model, given[place])
            made = function(*given, **kwargs)
            if inspect.isawaitable(made):
                made = await made
            if not hasattr(made, "__aiter__"):
                yield made
                return
            async for item in made:
                yield item

        return endpoint

    return decorate


def _parsed(model: Any, request: Any) -> Any:
    if not hasattr(model, "model_validate") or isinstance(request, model):
        return request
    try:
        if isinstance(request, str):
            request = json.loads(request)
        return model.model_validate(request)
    except ValueError as error:  # pydantic's own is one
        raise ValueError(f"the request is no {model.__name__}: {error}") from None
