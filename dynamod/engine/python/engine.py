"""A user's handler as an engine of the worker actor, like those that ship."""

from typing import ClassVar

import msgspec

from dynamod.message.discovery import EngineKind
from dynamod.message.worker import Chat, Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from .answers import ChunkAnswer, TokenAnswer
from .handler import Calls, Handler, Take
from .requests import openai, preprocessed, room


class PythonEngine(Engine):
    """What both kinds share. Requests run beside each other; how many at once is the handler's business."""

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.calls: Calls | None = None
        self._tokens = 0

    def use(self, handler: Handler) -> None:
        """Answer with this from now on."""
        self.handler = handler
        self.calls = Calls(handler, self.spawn)

    def statistics(self) -> EngineStatistics:
        """See Engine. Steps are the handler's own: none is known."""
        return EngineStatistics(running=len(self.calls or ()), tokens=self._tokens)

    async def close(self) -> None:
        """Tell the handlers; what is open is failed by the worker, and may go elsewhere."""
        if self.calls is not None:
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
    """PreprocessedRequest in, dicts with token_ids out."""

    kind: ClassVar[EngineKind] = "tokens"

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """See Engine."""
        assert isinstance(request, Generate)
        assert self.calls is not None
        answer = TokenAnswer(reply, self.handler.name, room(request))
        if room(request) == 0:
            answer.end()
            return
        self.calls.begin(request.request_id, preprocessed(request), reply, self._counted(reply, answer), answer.end)


class TextEngine(PythonEngine):
    """The client's request in, OpenAI chunks out."""

    kind: ClassVar[EngineKind] = "text"

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """See Engine."""
        assert isinstance(request, Chat)
        assert self.calls is not None
        try:
            body = openai(request)
        except msgspec.MsgspecError as error:
            reply.failed("BadRequest", f"the request cannot be read: {error}")
            return
        answer = ChunkAnswer(reply, self.handler.name)
        self.calls.begin(request.request_id, body, reply, self._counted(reply, answer), answer.end)
