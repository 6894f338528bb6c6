"""One attempt of a request at an instance: the sink of its stream, what that says of the prompt, and how it ended."""

from __future__ import annotations  # else a union is made for each request

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from dynamod.message import tokens
from dynamod.message.ingress import Delta, PromptLogprobs, Tokens
from dynamod.message.worker import Generate, Request
from dynamod.transport.base import Outbound

from .base import ChoiceSink, TakeLogprobs

HEARD_S = 0.2
"""Seconds after something has come from an instance in which the instance is known not to hang."""


class Break(NamedTuple):
    """Why an attempt broke. `retry`: its instance did nothing for the request. `died`: the instance does not answer any
    more. `displaced`: the instance is needed for another request. `link`: it was the connection that failed. `prompt`:
    it waited for a prompt that the prefill worker has lost. `pause`: seconds to wait before it continues. `heard`: the
    instance has sent something a moment ago (HEARD_S).
    """

    why: str
    retry: bool
    died: bool = False
    displaced: bool = False
    link: bool = False
    prompt: bool = False
    pause: float = 0.0
    heard: bool = False


class Attempt:
    """What an instance sends goes to the request, until `over`: then the request has moved on, and it is dropped.

    `ended`: how it broke; None when the choice is over. `asked`: the instance waits for a word about the prompt.
    `prompt`: takes what the instance says of the prompt; None: that is known already.
    """

    __slots__ = ("_delta", "_lost", "_prompt", "asked", "ended", "loop", "outbound", "over", "token")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        token: Callable[[int, int], None],
        delta: Callable[[Delta], None],
        lost: Callable[[Break], None],
        prompt: Callable[[Tokens | PromptLogprobs], None] | None = None,
    ) -> None:
        # Without a look at whether it is over: transports say nothing more once a stream is cancelled.
        self.token = token
        self._delta, self._lost, self._prompt = delta, lost, prompt
        self.loop = loop
        self.ended: asyncio.Future[Break | None] = loop.create_future()
        self.asked: asyncio.Future[None] | None = None
        self.outbound: Outbound | None = None
        self.over = False

    def delta(self, delta: Delta) -> None:
        """Take one delta."""
        if self.over:
            return
        if isinstance(delta, PromptLogprobs) or (isinstance(delta, Tokens) and delta.cached_tokens is not None):
            if self._prompt is not None:
                self._prompt(delta)
            if isinstance(delta, PromptLogprobs) or not (delta.ids or delta.finish):
                return
        self._delta(delta)

    def lost(self, why: str) -> None:
        """The connection is gone, and with it the instance."""
        if not self.over:
            self._lost(Break(why, retry=False, died=True))

    def link_lost(self, why: str) -> None:
        """The connection is gone; the instance may live."""
        if not self.over:
            self._lost(Break(why, retry=False, died=True, link=True))

    def end(self, broken: Break | None, *, notify_engine: bool) -> None:
        """The request leaves it; `notify_engine`: the instance may still work on it."""
        self.over = True
        if notify_engine and self.outbound is not None:
            self.outbound.cancel()
        if not self.ended.done():  # else the actor that runs the request is ending
            self.ended.set_result(broken)

    def confirm(self) -> None:
        """Let the instance begin."""
        if not self.over and self.outbound is not None:
            self.outbound.confirm()

    def taken(self, *, again: bool, alone: bool) -> None:
        """The instance says that it has the request: first that the request is there, then that it asks something.

        `again`: it has said so before. `alone`: the request is tried alone.
        """
        if not again and alone:
            self.confirm()  # it begins now: from here on it may be the cause of a crash
        elif again and self.asked is not None and not self.asked.done():
            self.asked.set_result(None)

    async def breaks_or_asks(self) -> bool:
        """Wait until it has ended, or the instance asks, which is true."""
        self.asked = self.loop.create_future()
        either: list[asyncio.Future[Any]] = [self.ended, self.asked]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self.asked.done() and not self.over


TakePrompt = Callable[[Tokens | PromptLogprobs], None]


def prompt_taker(sink: ChoiceSink, index: int, request: Request, logprobs: TakeLogprobs | None) -> TakePrompt:
    """What takes all that the instance that the request is sent to says of its prompt.

    Where a prefill worker computes the prompt its count of cached tokens counts, which is known now: to the instance
    that answers, all blocks that it gets are cached ones.
    """
    handoff = request.handoff if isinstance(request, Generate) else None
    counts = handoff is None or handoff.stored
    if handoff is not None and not counts and handoff.cached_tokens is not None:
        sink.counted(index, cached_tokens=handoff.cached_tokens)

    def take(delta: Tokens | PromptLogprobs) -> None:
        nonlocal counts
        if isinstance(delta, Tokens):
            if counts:
                counts = False  # a frame may come twice, the second time after tokens
                sink.counted(index, cached_tokens=delta.cached_tokens)
        elif logprobs is not None and isinstance(request, Generate):
            logprobs(index, delta, tokens.unpack(request.token_ids))

    return take
