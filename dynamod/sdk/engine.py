"""A handler that a user's process serves, as an engine of the worker actor (`engine.worker`)."""

from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.python.engine import PythonEngine, TextEngine, TokenEngine
from dynamod.engine.python.handler import Handler
from dynamod.kvcache.block_registry import Ledger
from dynamod.message.discovery import ModelCard
from dynamod.message.kv_events import FeedItem, Load
from dynamod.message.worker import Chat, Generate


class Served(PythonEngine):
    """What both kinds share: a card that the user has registered, and a ledger of what the user has published."""

    name = "python"

    def __init__(self, options: EngineOptions, spawn: Spawn, handler: Handler, card: ModelCard, ledger: Ledger) -> None:
        super().__init__(options, spawn)
        self.use(handler)
        self._card, self._ledger = card, ledger

    async def start(self) -> None:
        """The user's file has loaded whatever there is to load."""

    def card(self) -> ModelCard:
        """See Engine."""
        return self._card

    def load(self) -> Load:
        """See Engine. What a WorkerMetricsPublisher said last, else what is seen from here."""
        return self._ledger.load or super().load()


class ServedTokens(Served, TokenEngine):
    """ModelType.Backend."""

    async def start(self) -> None:
        """See Engine. Raises UserError when what is published has blocks of another size than the card."""
        self._ledger.serve(self._card.name, self._card.kv_cache_block_size, self.tell)

    async def close(self) -> None:
        """See Engine."""
        self._ledger.leave(self.tell)
        await super().close()

    def snapshot(self) -> tuple[FeedItem, ...]:
        """See Engine."""
        return (*self._ledger.snapshot(), self.load())

    def footprint(self, request: Generate | Chat) -> tuple[tuple[int, ...], int] | None:
        """See Engine."""
        assert isinstance(request, Generate)
        return self._ledger.footprint(request.token_ids + request.prior_output)


class ServedText(Served, TextEngine):
    """ModelType.Chat and ModelType.Completion."""
