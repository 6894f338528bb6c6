"""One call of a handler of the Python client API, in an actor of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

from dynamod.actor import Actor, System
from dynamod.engine.python.handler import Calls, Handler
from dynamod.engine.python.writers import CallWriter
from dynamod.transport.base import Reply


class Out:
    """Where a reply puts its deltas."""

    def __init__(self) -> None:
        self.origin: object = self
        self.streams: dict[int, Reply] = {}
        self.said: list[Any] = []

    def add(self, delta: Any) -> None:
        self.said.append(delta)

    def backlog(self, stream: int) -> int:
        return 0


class Owner(Actor):
    """Owns the tasks of calls."""


async def called(
    handler: Any,
    request: Any = None,
    *,
    leave_after: float | None = None,
    make: Callable[[Reply, str], Any] = CallWriter,
    private: bool = False,
) -> tuple[list[Any], float]:
    """One call of a handler: the deltas, and when the call had ended."""
    out = Out()
    reply = Reply(out, 1)
    wrapped = Handler(handler)
    async with System(seed=1) as system:
        ref = system.start("owner", Owner, restart="temporary")
        await system.ready(ref, timeout=1)
        cell = system.cell(ref)
        assert cell is not None
        calls = Calls(wrapped, cell.actor.context.task, private=private)
        answer = make(reply, wrapped.name)
        started = system.now()
        calls.begin("r1", request, reply, answer.take, answer.end)
        assert len(calls) == 1
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            reply.cancel()
        while len(calls):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return out.said, system.now() - started
