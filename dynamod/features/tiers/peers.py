"""Blocks of prompts that other workers have stored: asked for by the ingress for the worker that answers.

They only save time. Whatever goes wrong, the worker that answers computes what has not come; no request is suspected,
as nothing was computed for them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dynamod.discovery.view import View
from dynamod.features.prefill.stage import HandedPrompt
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.worker import Generate, Prefill
from dynamod.router.placement import Placement
from dynamod.transport.base import Transport

from .choice import PeerDecision
from .dispatch import PeerCounts

log = logging.getLogger("dynamod.frontend")

WAIT = 1.0
"""Seconds for a worker to say where its blocks are read: it computes nothing before."""


class StoredBlocks(HandedPrompt):
    """Blocks at a worker, until the worker that answers has its first token, or the request has ended."""

    source = "the worker that has them"


class PeerFetch:
    """Asks the workers that decisions name."""

    def __init__(self, view: View, transport: Transport, counts: Callable[[str], PeerCounts]) -> None:
        self._view, self._transport, self._counts = view, transport, counts

    def open(self, card: ModelCard, request: Generate, placement: Placement) -> Awaitable[StoredBlocks | None] | None:
        """Blocks of a request's prompt for the instance of `placement`, if they pay; close what is awaited.

        Its `handoff` is there then. None, at once or awaited: that instance computes the prompt.
        """
        peer = placement.decision.notes.get("peer")
        if not isinstance(peer, PeerDecision):
            return None
        instance = self._instance(card, peer) if peer.fetch else None
        return None if instance is None else self._fetched(card, request, placement, peer, instance)

    async def _fetched(
        self, card: ModelCard, request: Generate, placement: Placement, peer: PeerDecision, instance: Instance
    ) -> StoredBlocks | None:
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
