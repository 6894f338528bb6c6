"""The calls that an endpoint works on: started, counted, waited for, and ended with their actor."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dynamod.actor import Reason
from dynamod.engine.base import Job
from dynamod.engine.python.handler import Calls, Handler
from dynamod.engine.python.writers import CallWriter
from dynamod.message.worker import Call
from dynamod.transport.base import Reply

Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class OpenCalls:
    """Calls of one handler at `path`: any JSON-like value in, any number of them out."""

    def __init__(self, path: str, handler: Handler, spawn: Spawn) -> None:
        self._path, self._handler, self._calls = path, handler, Calls(handler, spawn)
        self._open: set[Reply] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def begun(self) -> int:
        """Calls so far."""
        return self._calls.begun

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, message: Job) -> None:
        """Start a call; any other request is refused."""
        call, reply = message.request, message.reply
        if not isinstance(call, Call):
            reply.failed("BadRequest", f"{self._path} takes calls, not {type(call).__name__}")
            return
        if reply.cancelled:
            return
        self._open.add(reply)
        self._idle.clear()
        reply.on_end(lambda _cancelled: self._ended(reply))
        reply.accepted()
        answer = CallWriter(reply, self._handler.name)
        self._calls.begin(call.request_id, call.payload, reply, answer.take, answer.end)

    def _ended(self, reply: Reply) -> None:
        self._open.discard(reply)
        if not self._open:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is open, or for `cut`."""
        await self._idle.wait()

    def cut(self) -> None:
        """Wait no longer."""
        self._idle.set()

    def fail(self, reason: Reason) -> None:
        """The actor ends, and its open calls end. No call is repeated: the handler may have done half of it."""
        self._calls.stop()
        for reply in list(self._open):
            reply.failed("EngineFailed", f"{self._path} ended ({reason})")
