"""The part of a worker in hand-offs: prompts for other workers, and requests whose prompts others have computed."""

from typing import Any, ClassVar

import msgspec

from dynamod.engine.capabilities import MovesBlocks
from dynamod.message.discovery import PREFILL, DisaggregationMode
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.worker import Generate, Prefill
from dynamod.transport.base import Reply
from dynamod.worker.parts import Submit, WorkerContext, WorkerPart

from .handoff import HandoffEndpoint
from .own_transfer import OwnTransferEndpoint
from .settings import TransferSettings

GB = 10**9


class Handoffs(WorkerPart):
    """`endpoint`: None before the first request that needs one.

    `lease`, `most_bytes`: of sessions, see `HandoffEndpoint`. `port`: at which other nodes read blocks, 0: a free one.
    """

    capabilities = ("handoff", "needs_prefill", "stored_blocks")

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        settings = context.settings or TransferSettings()
        found: TransferSettings = msgspec.convert(settings, TransferSettings, from_attributes=True)
        self.endpoint: HandoffEndpoint | OwnTransferEndpoint | None = None
        self.lease, memory = found.session_lease, found.session_memory_gb
        self.most_bytes = max(1, round(memory * GB)) if memory is not None else None
        self.port = found.transfer_port + context.index if found.transfer_port else 0
        self._entered = False
        if self.port >= 2**16:
            raise UserError(f"transfer_port {found.transfer_port} leaves no port for {context.name}")

    def make(self) -> HandoffEndpoint | OwnTransferEndpoint:
        """The endpoint of the worker's engine."""
        engine, spawn = self.context.engine, self.context.spawn
        if isinstance(engine, MovesBlocks) and engine.own_transfer is not None:
            return OwnTransferEndpoint(engine, engine.own_transfer, spawn)
        between = self.context
        return HandoffEndpoint(
            engine, spawn, port=self.port, most_bytes=self.most_bytes, signing=between.signing, tls=between.tls
        )

    def _ready(self) -> HandoffEndpoint | OwnTransferEndpoint:
        if self.endpoint is None:
            self.endpoint = self.make()
        return self.endpoint

    async def enter(self, role: DisaggregationMode) -> None:
        """A prefill worker listens for readers."""
        engine, first, self._entered = self.context.engine, not self._entered, True
        card = engine.card()
        if role != "aggregated" and not card.capabilities.handoff:
            text = f"engine {engine.name}, as it has been started, cannot be a {role} worker of model {card.name}"
            raise UserError(text, "leave out the disaggregation mode, or what keeps the engine from it")
        if role != PREFILL:
            return
        try:
            await self._ready().listen(self.context.host(), self.context.options().sockets, self.lease)
        except OSError as error:
            if not (first and self.port):
                raise
            hint = "choose another transfer_port"
            raise UserError(f"no worker can read blocks here: {error.strerror}", hint) from None

    def leave(self, role: DisaggregationMode) -> None:
        """A worker that was a prefill worker computes no more prompts for others."""
        if role == PREFILL and self.endpoint is not None:
            self.endpoint.refuse()

    def take(self, request: Prefill, reply: Reply) -> None:
        """Compute a prompt, or give what is stored of it."""
        if request.stored:
            self.context.begin(request, reply, self._export_stored)
        else:
            self.context.take(request, reply, self._begin)

    work: ClassVar = {Prefill: take}

    def _begin(self, request: Prefill, reply: Reply) -> None:
        self.context.begin(request.request, reply, self._prefill)

    def _prefill(self, request: Generate, reply: Reply) -> None:
        self._ready().prefill(request, reply)

    def _export_stored(self, request: Prefill, reply: Reply) -> None:
        endpoint = self._ready()
        if not isinstance(endpoint, HandoffEndpoint):
            raise BadRequest(f"engine {self.context.engine.name} gives no blocks that it has stored")
        endpoint.export_stored(request.request, reply, self.context.host(), self.context.options().sockets)

    def submitting(self, request: Any, submit: Submit) -> Submit:
        """The blocks of the prompt come from another worker."""
        handed = isinstance(request, Generate) and request.handoff is not None
        return self._ready().adopt if handed and self.context.engine.card().capabilities.handoff else submit

    def statistics(self) -> msgspec.Struct | None:
        """None before the first hand-off."""
        return self.endpoint.statistics() if self.endpoint is not None else None

    def close(self) -> None:
        """Drop all sessions."""
        if self.endpoint is not None:
            self.endpoint.close()
