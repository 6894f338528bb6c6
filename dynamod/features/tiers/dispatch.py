"""Peer fetch at the dispatcher: each decision names the worker that has most of the prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from dynamod.features.prefill.decision import MOVE
from dynamod.ingress.dispatch_stage import DispatchStage, Key
from dynamod.message.discovery import PREFILL
from dynamod.observe.metrics import Row
from dynamod.router.decision import Decision
from dynamod.router.placement import Acquire

from .choice import Pool, name_peer
from .settings import PeerSettings

if TYPE_CHECKING:
    from dynamod.ingress.dispatcher import Dispatcher


class PeerFetches(msgspec.Struct, frozen=True):
    """Prompts of a model of which another worker gave blocks."""

    peer_fetch_total: Annotated[int, Meta(description="Prompts whose KV blocks were read from another worker.")]
    peer_fetch_blocks_total: Annotated[int, Meta(description="Blocks of these prompts, as the router knew them.")]
    peer_fetch_failed_total: Annotated[int, Meta(description="Prompts of which another worker gave no block.")]


class PeerCounts:
    """Prompts of a model of which another worker gave blocks, those blocks as they were known, and how often none came.

    What has really been read the workers count.
    """

    __slots__ = ("blocks", "failed", "fetches")

    def __init__(self) -> None:
        self.fetches = self.blocks = self.failed = 0


class PeerDispatch(DispatchStage):
    """`move`: what a read costs in addition to its blocks, in tokens of prompts."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher, self.move = dispatcher, MOVE
        config = dispatcher.config or PeerSettings()
        self.needs_blocks = msgspec.convert(config, PeerSettings, from_attributes=True).kv_peer_fetch
        self.counts: defaultdict[str, PeerCounts] = defaultdict(PeerCounts)

    def decided(self, key: Key, message: Acquire, decision: Decision, exclude: Collection[int]) -> Decision:
        """The decision, with the worker from which blocks of the prompt may be read."""
        model, prompt = message.model, message.prompt
        if not self.needs_blocks or key[1]:
            return decision
        groups = {pool: self._dispatcher.routers.get((model, pool)) for pool in ("", PREFILL)}
        answering, card = groups[""], self._dispatcher.card(model)
        can = self._dispatcher.view.capabilities(card) if card is not None else None
        if answering is None or can is None or not can.stored_blocks:
            return decision
        pools = [Pool(name, one.workers, one.state) for name, one in groups.items() if one is not None]
        peer = name_peer(prompt.blocks, prompt.tokens, decision.chosen, answering.state, pools, exclude, self.move)
        if peer is None:
            return decision
        notes = {**decision.notes, "peer": peer}
        return msgspec.structs.replace(decision, notes=notes, reads=peer.blocks if peer.fetch else 0)

    def rows(self, model: str, prefix: str, labels: dict[str, str]) -> Iterable[Row]:
        """Prompts of which blocks were read."""
        peers = self.counts[model]
        yield prefix, labels, PeerFetches(peers.fetches, peers.blocks, peers.failed)
