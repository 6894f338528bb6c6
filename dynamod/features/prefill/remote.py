"""Prompts that prefill workers compute for the worker that answers: asked for by the ingress, which owns the request.

The bytes of blocks go from worker to worker. What comes here is a `Handoff`, which the request takes to the worker that
answers. A prompt that no prefill worker computes is computed there.
"""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import PREFILL, ModelCard
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.ingress import Accepted, Delta, Failed
from dynamod.message.worker import TRIAL_PAUSE, TRIAL_TAKEN, Generate, Prefill
from dynamod.migration.base import Choice, Limits
from dynamod.observe import timeline
from dynamod.router.placement import DispatcherClient, Placement
from dynamod.transport.base import Transport

from .dispatch import PrefillCounts
from .stage import HandedPrompt, PrefillWorkerLost

if TYPE_CHECKING:
    from .decision import PrefillDecision

log = logging.getLogger("dynamod.frontend")


TRIES = 3
"""Prefill workers that are asked for a prompt which the worker that answers cannot compute."""


class _Displaced(EngineFailed):
    """The prefill worker tries a request alone: this one may be computed elsewhere, or later."""

    def __init__(self) -> None:
        super().__init__("its prefill worker tries another request alone")


class RemotePrompt(HandedPrompt):
    """A prompt at a prefill worker, from `open` until the worker that answers has read it, or it is left."""

    source = "the prefill worker"

    def __init__(self, placement: Placement, counts: PrefillCounts, ended: Callable[["RemotePrompt"], object]) -> None:
        super().__init__()
        self.placement, self.instance = placement, placement.instance
        self._failed: Callable[[str, bool], None] | None = None
        self._lost: RequestError | None = None
        self._counts, self._ended = counts, ended

    @property
    def awaited(self) -> bool:
        """Whether the request waits for the worker here; else the reader sees on its own that nothing comes."""
        return self._failed is not None or not self.handoff.done()

    def watch(self, failed: Callable[[str, bool], None]) -> None:
        """Call `failed` once if the prompt is lost before it has been read: why, and whether others need the worker."""
        self._failed = failed
        if self._lost is not None:
            asyncio.get_running_loop().call_soon(self._tell, self._lost)

    def _tell(self, lost: RequestError) -> None:
        if self._failed is not None:
            self._failed(f"its prompt is lost: {lost}", isinstance(lost, _Displaced))

    def unread(self) -> None:
        """The prompt has failed, as one of the two workers has said."""
        self._counts.failed += 1

    def delta(self, delta: Delta) -> None:
        """The hand-off, and then the end: everything has been read."""
        if isinstance(delta, Accepted) and self.placement.alone and self.outbound is not None:
            self.outbound.confirm()  # it begins now: from here on it may be the cause of a crash
            self.alone = not self.placement.shared
        if isinstance(delta, Failed) and delta.code == TRIAL_TAKEN:
            self.fail(_Displaced())
        else:
            super().delta(delta)

    def lost(self, why: str) -> None:
        """The worker is gone."""
        self.fail(PrefillWorkerLost(self.placement.instance, why, alone=self.alone))

    def displace(self) -> bool:
        """Leave the worker to the trial of another request, before which no request could be blamed for a crash."""
        self._cancel()
        self.fail(_Displaced())
        return True

    def fail(self, error: RequestError) -> None:
        """The stream has ended: the worker does no more for it, and what has not been read is gone."""
        if self._over:
            return
        if self.handoff.done():
            self._lost = error
        self._end(error)
        self._tell(error)

    def read(self) -> None:
        """The worker that answers reads no more blocks. By then it has them, or it has computed what did not come.

        The prefill worker may not know it: only an engine that sends blocks on its own does.
        """
        handoff = self.handoff.result()
        if not handoff.params or handoff.shape == "pull":
            self.close()

    def leave(self, why: str) -> None:
        """The worker hangs: wait for it no more. It drops what it has, as soon as it can."""
        self._cancel()
        self.lost(why)

    def _end(self, error: RequestError) -> None:
        super()._end(error)
        self._ended(self)
        self.placement.release()


def _never() -> bool:
    return False


class RemotePrefill:
    """Asks prefill workers. `limits`: for a place there, where that must be waited for, and until a hand-off comes.

    `enforced`: the answering workers compute no prompts, whatever their engines can do.
    """

    def __init__(
        self,
        view: View,
        transport: Transport,
        dispatcher: DispatcherClient,
        limits: Limits,
        counts: Callable[[str], PrefillCounts],
        *,
        enforced: bool = False,
    ) -> None:
        self._view, self._transport, self._dispatcher = view, transport, dispatcher
        self._limits, self._counts, self._enforced = limits, counts, enforced
        self._open: dict[RemotePrompt, None] = {}  # in the order of their start
        view.on_change(self.instances_changed)

    def needed(self, card: ModelCard) -> bool:
        """Whether the workers that answer for this model compute no prompts."""
        return self._enforced or card.capabilities.needs_prefill

    def serves(self, card: ModelCard) -> bool:
        """Whether `open` is to be asked: a prefill worker is there, or has to be."""
        return self.needed(card) or bool(self._view.served(card.name, card, PREFILL).instances)

    async def open(
        self, choice: Choice, tried: set[int], request: Generate, placement: Placement
    ) -> RemotePrompt | None:
        """Have a prompt computed for the instance of `placement`; None when that has to do it. Close what is returned.

        Its `handoff` is there then. Where the instance computes no prompts, others than those `tried` are asked and
        waited for, as is one that takes no other meanwhile if the placement is such. Raises PrefillWorkerLost, and then
        RequestError when none has it.
        """
        card, prompt = choice.card, choice.prompt

        def mark(what: str, about: Any = None) -> None:
            choice.mark((what, choice.index, perf_counter(), about))

        needed = self.needed(card)
        counts = self._counts(card.base)
        asked = msgspec.structs.replace(prompt, instance=None)
        taken: set[int] = set()  # prefill workers that try another request alone: others come first
        while True:
            if taken and not self._dispatcher.available(card, asked, {*tried, *taken}, pool=PREFILL):
                taken.clear()
                await asyncio.sleep(TRIAL_PAUSE)
            mark(timeline.PREFILL_ASKED)
            place = self._dispatcher.acquire(
                card,
                asked,
                {*tried, *taken},
                pool=PREFILL,
                waits=needed,
                again=needed,
                alone=placement.alone,
                after=placement.decision,
                timeout=self._limits.first if placement.alone else self._limits.queue,
            )
            decided = cast("Placement | PrefillDecision", await place)
            if not isinstance(decided, Placement):
                counts.local[decided.reason] += 1
                return None
            mark(timeline.PREFILL_PLACED, decided.found)
            try:
                remote = await self._begun(decided, request, counts, mark)
            except _Displaced:
                taken.add(decided.instance.instance_id)
                continue
            except RequestError as error:
                counts.failed += 1
                tried.add(decided.instance.instance_id)
                lost = isinstance(error, PrefillWorkerLost)
                if not needed:
                    log.warning("request %s: its worker computes the prompt: %s", request.request_id, error)
                    if not lost:
                        return None
                elif len(tried) >= TRIES and not (isinstance(error, PrefillWorkerLost) and error.alone):
                    raise EngineFailed(f"no prefill worker could compute the prompt: {error}") from None
                if lost:
                    raise  # the request finds out whether its prompt has done it
                continue
            mark(timeline.HANDED)
            tried.clear()
            counts.remote += 1
            counts.tokens += decided.decision.tokens
            placement.prefill_completed()  # it is no load there
            placement.first_token = remote.read
            return remote

    async def _begun(
        self, place: Placement, request: Generate, counts: PrefillCounts, mark: Callable[..., None]
    ) -> RemotePrompt:
        """Send a prompt to a prefill worker, and wait for the hand-off. Raises RequestError."""

        def ended(prompt: RemotePrompt) -> None:
            self._open.pop(prompt, None)
            mark(timeline.RELEASED)

        remote, limit = RemotePrompt(place, counts, ended), self._limits.first
        place.leave, place.stays = remote.displace, _never
        self._open[remote] = None
        if place.alone:
            request = msgspec.structs.replace(request, alone=True)
        try:
            remote.outbound = self._transport.open(place.instance, Prefill(request), remote)
            async with asyncio.timeout(limit):
                await remote.handoff
            return remote
        except TimeoutError:
            remote.close()
            raise EngineFailed(f"nothing came within {limit:g} s") from None
        except BaseException:
            remote.close()
            raise

    def instances_changed(self) -> None:
        """Wait no more for workers whose process does not answer its daemon."""
        for remote in [one for one in self._open if one.awaited and self._view.quarantined(one.placement.instance)]:
            remote.leave("the prefill worker's process does not answer any more")
