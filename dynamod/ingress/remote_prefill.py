"""Prompts that prefill workers compute for the worker that answers: asked for by the ingress, which owns the request.

The bytes of blocks go from worker to worker. What comes here is a `Handoff`, which the request takes to the worker that
answers. A prompt that no prefill worker computes is computed there.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Self

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import PREFILL, Instance, ModelCard
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.worker import Generate, Handoff, Prefill
from dynamod.migration.prompt import PrefillWorkerLost
from dynamod.router.placement import DispatcherClient, Placement
from dynamod.router.router import Prompt
from dynamod.transport.base import Outbound, Sink, Transport

from .counts import PrefillCounts

log = logging.getLogger("dynamod.frontend")


class RemotePrompt(Sink):
    """A prompt at a prefill worker, from `open` until the worker that answers has read it, or it is left."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.handoff: asyncio.Future[Handoff] = asyncio.get_running_loop().create_future()
        self.outbound: Outbound | None = None
        self.lost_why = ""  # the worker has gone
        self._over = False

    @property
    def instance(self) -> Instance:
        """Of the prefill worker."""
        return self.placement.instance

    def delta(self, delta: Delta) -> None:
        """The hand-off, and then the end: everything has been read."""
        if isinstance(delta, Items) and delta.items and not self.handoff.done():
            try:
                self.handoff.set_result(msgspec.msgpack.decode(delta.items[0], type=Handoff))
            except (msgspec.MsgspecError, TypeError) as error:
                self.fail(EngineFailed(f"the prefill worker's answer cannot be read: {error}"))
        if isinstance(delta, Failed):
            self.fail(delta.exception())
        elif getattr(delta, "finish", None) is not None:
            self.fail(EngineFailed("the prefill worker has ended the session"))

    def lost(self, why: str) -> None:
        """The worker is gone."""
        self.lost_why = why
        self.fail(EngineFailed(why))

    def fail(self, error: RequestError) -> None:
        """The stream has ended: the worker does no more for it."""
        self._end()
        if not self.handoff.done():
            self.handoff.set_exception(error)
            self.handoff.exception()  # whoever waits gets it; nobody may

    def read(self) -> None:
        """The worker that answers has the blocks. Engines that move them by themselves may not know it."""
        if self.handoff.result().params:
            self.close()

    def leave(self, why: str) -> None:
        """Wait for the worker no more; it drops what it has, as soon as it can."""
        if not self._over and self.outbound is not None:
            self.outbound.cancel()
        self.fail(EngineFailed(why))

    def close(self) -> None:
        """It is needed no more, or never was."""
        self.leave("the request has ended")

    def _end(self) -> None:
        self._over = True
        self.placement.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class RemotePrefill:
    """Asks prefill workers. `timeout`: seconds until a hand-off must have come; None: no limit."""

    def __init__(
        self,
        view: View,
        transport: Transport,
        dispatcher: DispatcherClient,
        timeout: float | None,
        counts: Callable[[str], PrefillCounts],
    ) -> None:
        self._view, self._transport, self._dispatcher = view, transport, dispatcher
        self._timeout, self._counts = timeout, counts
        self._waiting: set[RemotePrompt] = set()

    async def open(
        self, card: ModelCard, prompt: Prompt, request: Generate, placement: Placement
    ) -> RemotePrompt | None:
        """Have a prompt computed for the instance of `placement`; None when that has to do it. Close what is returned.

        Its `handoff` is there then. Raises PrefillWorkerLost.
        """
        if not self._view.served(card.name, card, PREFILL).instances:
            return None
        counts = self._counts(card.name)
        decided = await self._dispatcher.acquire_prefill(card, prompt, placement.decision)
        if not isinstance(decided, Placement):
            counts.local[decided.reason] += 1
            return None
        remote = RemotePrompt(decided)
        self._waiting.add(remote)
        try:
            remote.outbound = self._transport.open(decided.instance, Prefill(request), remote)
            async with asyncio.timeout(self._timeout):
                await remote.handoff
        except (RequestError, TimeoutError) as error:
            remote.close()
            counts.failed += 1
            why = str(error) or f"nothing came within {self._timeout:g} s"
            log.warning("request %s: its worker computes the prompt: %s", request.request_id, why)
            if remote.lost_why:
                raise PrefillWorkerLost(decided.instance, why) from None
            return None
        except BaseException:
            remote.close()
            raise
        finally:
            self._waiting.discard(remote)
        counts.remote += 1
        counts.tokens += decided.decision.tokens
        placement.prefill_completed()  # it is no load there
        placement.first_token = remote.read
        return remote

    def instances_changed(self) -> None:
        """Wait no more for workers whose process does not answer its daemon."""
        for remote in [one for one in self._waiting if self._view.quarantined(one.placement.instance)]:
            remote.lost_why = "the prefill worker's process does not answer any more"
            remote.leave(remote.lost_why)
