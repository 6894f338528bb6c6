"""A user's handler as an engine of the worker actor (`engine.worker`), like those that ship."""

from typing import ClassVar

import msgspec

from dynamod.engine.base import Engine, EngineOptions, EngineStatistics, Spawn
from dynamod.message.cache import FeedItem, Load
from dynamod.message.registry import EngineKind, ModelCard
from dynamod.message.worker import Chat, Generate
from dynamod.post.base import Reply

from .answers import ChunkAnswer, TokenAnswer
from .handler import Calls, Handler, Take
from .ledger import Ledger
from .requests import openai, preprocessed, room


class PythonEngine(Engine):
    """What both kinds share. Requests run beside each other; how many at once is the handler's business."""

    name = "python"
    needs_model = False

    def __init__(self, options: EngineOptions, spawn: Spawn, handler: Handler, card: ModelCard, ledger: Ledger) -> None:
        super().__init__(options, spawn)
        self._handler, self._card, self._ledger = handler, card, ledger
        self.calls = Calls(handler, spawn)
        self._tokens = 0

    async def start(self) -> None:
        """The user's file has loaded whatever there is to load."""

    def card(self) -> ModelCard:
        """See Engine."""
        return self._card

    def statistics(self) -> EngineStatistics:
        """See Engine. Steps are the handler's own: none is known."""
        return EngineStatistics(running=len(self.calls), tokens=self._tokens)

    def load(self) -> Load:
        """See Engine. What a WorkerMetricsPublisher said last, else what is seen from here."""
        return self._ledger.load or super().load()

    async def close(self) -> None:
        """Tell the handlers; what is open is failed by the worker, and may go elsewhere."""
        self.calls.stop()

    def _counted(self, reply: Reply, answer: TokenAnswer | ChunkAnswer) -> Take:
        """`answer.take`, with the first token told and all of them counted."""

        def take(item: object) -> float | None:
            before = answer.count
            left = answer.take(item)
            if answer.count != before:
                if not before:
                    self.computed(reply)
                self._tokens += answer.count - before
            return left

        return take


class TokenEngine(PythonEngine):
    """ModelType.Backend: PreprocessedRequest in, dicts with token_ids out."""

    kind: ClassVar[EngineKind] = "tokens"

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

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """See Engine."""
        assert isinstance(request, Generate)
        answer = TokenAnswer(reply, self._handler.name, room(request))
        if room(request) == 0:
            answer.end()
            return
        self.calls.begin(request.request_id, preprocessed(request), reply, self._counted(reply, answer), answer.end)


class TextEngine(PythonEngine):
    """ModelType.Chat and ModelType.Completion: the client's request in, OpenAI chunks out."""

    kind: ClassVar[EngineKind] = "text"

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """See Engine."""
        assert isinstance(request, Chat)
        try:
            body = openai(request)
        except msgspec.MsgspecError as error:
            reply.failed("BadRequest", f"the request cannot be read: {error}")
            return
        answer = ChunkAnswer(reply, self._handler.name)
        self.calls.begin(request.request_id, body, reply, self._counted(reply, answer), answer.end)
