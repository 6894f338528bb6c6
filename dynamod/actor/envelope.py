"""A message on its way to an actor, and what its handler inherits: the waiting actors, the deadline."""

import asyncio
import contextvars
from typing import Any

import msgspec

from .errors import ActorUnreachable, DeadlineExceeded

asking: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("asking", default=())
"""Paths of the actors that wait for the current handler, outermost first: how ask cycles are seen."""

deadline_now: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline_now", default=None)
"""Deadline of the message being handled; an ask made by the handler never waits longer."""


class Envelope(msgspec.Struct, eq=False):
    """A message in transit: the future of the reply, its deadline, and the chain of waiting actors."""

    message: Any
    reply: asyncio.Future[Any] | None = None
    deadline: float | None = None
    chain: tuple[str, ...] = ()
    scope: asyncio.Timeout | None = None
    later: asyncio.Future[Any] | None = None
    abandoned: bool = False

    def abandon(self) -> None:
        """The asker waits no longer: skip the message, or interrupt the handler that works on it."""
        self.abandoned = True
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time())
        if self.later is not None:
            self.later.cancel()

    def expire(self, path: str) -> None:
        """The deadline has passed."""
        self.abandon()
        self.answer(DeadlineExceeded(f"{path} did not answer {type(self.message).__name__} in time"))

    def returned(self, value: Any, deferred: set[asyncio.Future[Any]]) -> None:
        """Answer with what the receiver has returned; with the result of a future when that is done.

        `deferred`: has such a future until then.
        """
        if self.reply is None:
            return
        if not isinstance(value, asyncio.Future):
            self.answer(value)
            return
        deferred.add(value)
        value.add_done_callback(deferred.discard)
        self.later = value
        value.add_done_callback(self._settle)

    def _settle(self, later: asyncio.Future[Any]) -> None:
        if later.cancelled():
            self.answer(ActorUnreachable("the reply was withdrawn"))
        else:
            self.answer(later.exception() or later.result())

    def answer(self, value: Any) -> None:
        """Give the asker its reply; an exception instance is raised there."""
        if self.reply is None or self.reply.done():
            return
        if isinstance(value, BaseException):
            self.reply.set_exception(value)
        else:
            self.reply.set_result(value)
