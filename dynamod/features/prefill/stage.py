"""The stage of a choice whose prompt another worker computes, or has stored, for the instance that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

import msgspec

from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.worker import HANDOFF_FAILED, Generate, Handoff, Request
from dynamod.migration.attempt import Attempt, Break
from dynamod.migration.stages import CAUSE, Stage, Try
from dynamod.router.placement import Placement
from dynamod.transport.base import Outbound, Sink

if TYPE_CHECKING:
    from dynamod.migration.request import InFlightRequest

CAUSE_LOOK = 0.02
"""Seconds between looks for the end of a prefill worker."""

HANGS_S = 2.5
"""Seconds until it is known that a worker hangs: its daemon says so after 2 s without a sign of life."""

REFUSED_S = 0.1
"""Seconds in which an instance refuses blocks, as those of another layout; blocks that do not come take longer."""


class HandedPrompt(Sink):
    """The stream of a prompt at another worker. Leaving its context drops what has not been read there.

    `handoff`: the other worker's, when it has come. `instance`: the instance that computes the prompt; None where
    nothing is computed for it, so that it cannot be the cause of a crash. `alone`: it was tried alone there, and had
    begun. `source`: the other worker in texts.
    """

    source = "the other worker"

    def __init__(self) -> None:
        self.handoff: asyncio.Future[Handoff] = asyncio.get_running_loop().create_future()
        self.instance: Instance | None = None
        self.alone = False
        self.outbound: Outbound | None = None
        self._over = False

    def watch(self, failed: Callable[[str, bool], None]) -> None:
        """Call `failed` once if the blocks cannot be had any more: why, and whether only another needs the worker."""

    def unread(self) -> None:
        """The instance gives the request up because it could not have the blocks."""

    def delta(self, delta: Delta) -> None:
        """The hand-off, and then the end: everything has been read."""
        if isinstance(delta, Items) and delta.items and not self.handoff.done():
            try:
                self.handoff.set_result(msgspec.msgpack.decode(delta.items[0], type=Handoff))
            except (msgspec.MsgspecError, TypeError) as error:
                self.fail(EngineFailed(f"the answer of {self.source} cannot be read: {error}"))
        if isinstance(delta, Failed):
            self.fail(delta.exception())
        elif getattr(delta, "finish", None) is not None:
            self._end(EngineFailed(f"{self.source} has ended the session"))

    def lost(self, why: str) -> None:
        """The other worker is gone."""
        self.fail(EngineFailed(why))

    def fail(self, error: RequestError) -> None:
        """The stream has ended: the other worker does no more for it, and what has not been read is gone."""
        self._end(error)

    def close(self) -> None:
        """The prompt is needed no more, or never was. Called again, it does nothing."""
        self._cancel()
        self._end(EngineFailed("the request has ended"))

    def _cancel(self) -> None:
        if not self._over and self.outbound is not None:
            self.outbound.cancel()

    def _end(self, error: RequestError) -> None:
        self._over = True
        if not self.handoff.done():
            self.handoff.set_exception(error)
            self.handoff.exception()  # the request may not wait for it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class PrefillWorkerLost(EngineFailed):
    """The prefill worker `instance` has gone before it gave a hand-off: the prompt may have crashed it.

    `alone`: as of a `HandedPrompt`.
    """

    def __init__(self, instance: Instance, why: str, *, alone: bool = False) -> None:
        super().__init__(why)
        self.instance, self.alone = instance, alone


OpenPrompt = Callable[[Generate, Placement], Awaitable[HandedPrompt | None] | None]
"""Has a prompt computed for the instance of a placement. None, at once or awaited: that instance has to do it.

Awaiting it raises Overloaded when this process ends, and PrefillWorkerLost.
"""


class PromptStage(Stage):
    """Has the prompt computed elsewhere, if that pays. `needed`: the engine computes no prompts, so it always does."""

    order = -1  # a prompt that is lost with its prefill worker is no failure of the instance

    def __init__(self, open_: OpenPrompt, needed: bool, flight: InFlightRequest) -> None:
        self._open, self._needed, self._flight = open_, needed, flight
        self._watched: HandedPrompt | None = None
        self._computed: float | None = None  # when the hand-off came, if it says that the prompt was computed

    async def attempt(self, placement: Placement, request: Request, proceed: Try) -> Break | None:
        """Send the request with the hand-off of its prompt. A request that is tried alone computes its own prompt."""
        self._watched, alone = None, placement.alone
        if not isinstance(request, Generate) or (alone and not self._needed):
            return await proceed(request)
        opening = self._open(request, placement)
        if opening is None:
            return await proceed(request)
        try:
            prompt = await opening
        except PrefillWorkerLost as lost:
            if await self._flight.stages.blame(lost.instance, CAUSE, placement, alone=lost.alone) or self._needed:
                return Break(str(lost), retry=True, displaced=True)  # another placement, where no other request is
            prompt = None
        if prompt is None:
            return await proceed(request)
        with prompt:
            self._watched = None if alone else prompt
            if self._needed:
                prompt.watch(self._lost)
            now, handoff = asyncio.get_running_loop().time, prompt.handoff.result()
            since = now()
            self._computed = since if handoff.params and handoff.shape == "pull" else None
            broken = await proceed(msgspec.structs.replace(request, handoff=handoff))
            if broken is not None and not self._flight.answer.begun:
                await self._blame(broken, prompt, placement, now() - since)
            return broken

    async def _blame(self, broken: Break, prompt: HandedPrompt, placement: Placement, took: float) -> None:
        flight = self._flight
        if broken.died:  # both may have computed the prompt at once
            await flight.stages.blame(prompt.instance, 0.0, until=self._computed)
        elif broken.prompt or (broken.displaced and not flight.stages.suspect):
            refused = took <= REFUSED_S
            if broken.prompt:
                prompt.unread()
                if refused:
                    prompt.close()  # before the wait for a cause: the worker may not have begun to compute
            timeout = CAUSE if broken.prompt else 0.0
            computing = prompt.handoff.result().shape == "rendezvous" and not refused
            if broken.prompt and prompt.alone and computing:
                timeout = HANGS_S  # the worker may hang at this prompt, the only one that it has
            # Else the prompt is computed: what crashes now computes another one, if it was not alone.
            await flight.stages.blame(prompt.instance, timeout, placement, alone=prompt.alone, begun=False)

    def watch(self, attempt: Attempt, placement: Placement) -> Awaitable[None] | None:
        """Wait until the instance asks whether it may compute the prompt, whose blocks do not come, or the end."""
        return None if self._watched is None else self._until_asked(attempt, self._watched)

    async def _until_asked(self, attempt: Attempt, prompt: HandedPrompt) -> None:
        flight, now = self._flight, attempt.loop.time
        while await attempt.breaks_or_asks():
            end, cause = now() + CAUSE, ""
            while not attempt.over and not cause and now() < end:
                await asyncio.wait([attempt.ended], timeout=CAUSE_LOOK)
                cause = await flight.stages.blame(prompt.instance, 0.0, until=self._computed)
            if cause and not attempt.over:
                why = "the prefill worker crashed, maybe at its prompt"
                flight.give_back(Break(why, retry=True, displaced=True))
            attempt.confirm()

    def failed(self, failed: Failed) -> bool:
        """The instance has got no blocks, and computes no prompts."""
        mine = failed.code == HANDOFF_FAILED and self._needed and not self._flight.answer.begun
        if mine:
            self._lost(failed.message)
        return mine

    def _lost(self, why: str, displaced: bool = False) -> None:
        """The instance, with which nothing is wrong, waits for blocks in vain: have the prompt computed once more."""
        if self._flight.attempting and not self._flight.answer.begun:
            self._flight.give_back(Break(why, retry=True, displaced=displaced, prompt=not displaced))
