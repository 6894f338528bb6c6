"""A handler that a user's process serves, as an engine of the worker actor (`engine.worker`)."""

from dynamod.engine.base import EngineOptions, RequestT, Spawn
from dynamod.engine.python.engine import PythonEngine, TextEngine, TokenEngine
from dynamod.engine.python.handler import Handler
from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.message.discovery import ModelCard
from dynamod.message.kv_events import Load, WorkerEvent
from dynamod.message.worker import Chat, Generate


class Served(PythonEngine[RequestT]):
    """What both kinds share: a card that the user has registered, and a ledger of what the user has published."""

    name = "python"

    def __init__(
        self, options: EngineOptions, spawn: Spawn, handler: Handler, card: ModelCard, block_registry: BlockRegistry
    ) -> None:
        super().__init__(options, spawn)
        self.use(handler)
        self._card, self._block_registry = card, block_registry

    async def start(self) -> None:
        """The user's file has loaded whatever there is to load."""

    def load(self) -> Load:
        """See Engine. What a WorkerMetricsPublisher said last, else what is seen from here."""
        return self._block_registry.load or super().load()


class ServedTokens(Served[Generate], TokenEngine):
    """ModelType.Backend."""

    async def start(self) -> None:
        """See Engine. Raises UserError when what is published has blocks of another size than the card."""
        self._block_registry.serve(self._card.name, self._card.kv_cache_block_size, self.publish)

    async def close(self) -> None:
        """See Engine."""
        self._block_registry.leave(self.publish)
        await super().close()

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """See Engine."""
        return (*self._block_registry.snapshot(), self.load())

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int] | None:
        """See Engine."""
        return self._block_registry.footprint(request.token_ids + request.prior_output)


class ServedText(Served[Chat], TextEngine):
    """ModelType.Chat and ModelType.Completion."""
