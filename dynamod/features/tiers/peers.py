"""Blocks of prompts that other workers have stored: asked for by the ingress for the worker that answers.

They only save time. Whatever goes wrong, the worker that answers computes what has not come; no request is suspected,
as nothing was computed for them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Self

import msgspec

from dynamod.discovery.view import View
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.ingress import Delta, Failed, Items
from dynamod.message.worker import Generate, Handoff, Prefill
from dynamod.router.placement import Placement
from dynamod.transport.base import Outbound, Sink, Transport

from .choice import PeerDecision
from .dispatch import PeerCounts

log = logging.getLogger("dynamod.frontend")

WAIT = 1.0
"""Seconds for a worker to say where its blocks are read: it computes nothing before."""


class StoredBlocks(Sink):
    """Blocks at a worker, until the worker that answers has its first token, or the request has ended."""

    instance: Instance | None = None
    alone = False

    def __init__(self) -> None:
        self.handoff: asyncio.Future[Handoff] = asyncio.get_running_loop().create_future()
        self.outbound: Outbound | None = None
        self._over = False

    def watch(self, failed: Callable[[str, bool], None]) -> None:
        """The worker that answers sees by itself that nothing comes."""

    def unread(self) -> None:
        """They are not needed: the worker that answers can compute them."""

    def delta(self, delta: Delta) -> None:
        """The hand-off, and then the end: everything has been read."""
        if isinstance(delta, Items) and delta.items and not self.handoff.done():
            try:
                self.handoff.set_result(msgspec.msgpack.decode(delta.items[0], type=Handoff))
            except (msgspec.MsgspecError, TypeError) as error:
                self._end(EngineFailed(f"its answer cannot be read: {error}"))
        if isinstance(delta, Failed):
            self._end(delta.exception())
        elif getattr(delta, "finish", None) is not None:
            self._end(EngineFailed("it has ended the session"))

    def lost(self, why: str) -> None:
        """The worker is gone."""
        self._end(EngineFailed(why))

    def close(self) -> None:
        """They are needed no more. Called again, it does nothing."""
        if not self._over and self.outbound is not None:
            self.outbound.cancel()
        self._end(EngineFailed("the request has ended"))

    def _end(self, error: RequestError) -> None:
        self._over = True
        if not self.handoff.done():
            self.handoff.set_exception(error)
            self.handoff.exception()  # whoever waits gets it; nobody may

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class PeerFetch:
    """Asks the workers that decisions name."""

    def __init__(self, view: View, transport: Transport, counts: Callable[[str], PeerCounts]) -> None:
        self._view, self._transport, self._counts = view, transport, counts

    async def open(self, card: ModelCard, request: Generate, placement: Placement) -> StoredBlocks | None:
        """Blocks of a request's prompt for the instance of `placement`, if they pay; close what is returned.

        Its `handoff` is there then. None: that instance computes the prompt.
        """
        peer = placement.decision.notes.get("peer")
        if not isinstance(peer, PeerDecision):
            return None
        instance = self._instance(card, peer) if peer.fetch else None
        if instance is None:
            return None
        counts, blocks = self._counts(card.base), StoredBlocks()
        try:
            blocks.outbound = self._transport.open(instance, Prefill(request, stored=True), blocks)
            async with asyncio.timeout(WAIT):
                await blocks.handoff
        except (TimeoutError, RequestError) as error:
            blocks.close()
            counts.failed += 1
            why = f"nothing came within {WAIT:g} s" if isinstance(error, TimeoutError) else error
            log.warning(
                "request %s: its worker computes the prompt: a peer gives no blocks: %s", request.request_id, why
            )
            return None
        except BaseException:
            blocks.close()
            raise
        counts.fetches += 1
        counts.blocks += peer.blocks - peer.own
        placement.first_token = blocks.close
        return blocks

    def _instance(self, card: ModelCard, peer: PeerDecision) -> Instance | None:
        return self._view.served(card.name, card, peer.pool).get(peer.instance)
