"""A user's handler as an engine of the worker actor, like those that ship."""

from typing import Any

from dynamod.message.worker import Chat, Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, RequestT, Spawn
from .handler import Calls, Handler
from .requests import openai, preprocessed, room
from .writers import ChunkWriter, TokenWriter


class PythonEngine(Engine[RequestT]):
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
        """Steps are the handler's own: none is known."""
        return EngineStatistics(running=len(self.calls or ()), tokens=self._tokens)

    async def close(self) -> None:
        """Tell the handlers; what is open is failed by the worker, and may go elsewhere."""
        if self.calls is not None:
            self.calls.stop()

    def _begin(self, request: Generate | Chat, given: Any, reply: Reply, writer: TokenWriter | ChunkWriter) -> None:
        """Call the handler with what is `given` to it; the first token is reported and all of them are counted."""
        assert self.calls is not None

        def take(item: object) -> float | None:
            before = writer.count
            left = writer.take(item)
            if writer.count and not before:
                self.prefill_completed(reply)
            self._tokens += writer.count - before
            return left

        self.calls.begin(request.request_id, given, reply, take, writer.end)


class TokenEngine(PythonEngine[Generate]):
    """PreprocessedRequest in, dicts with token_ids out."""

    serves = (Generate,)

    def submit(self, request: Generate, reply: Reply) -> None:
        """Call the handler with the request in the original's form."""
        writer = TokenWriter(reply, self.handler.name, room(request))
        if room(request) == 0:
            writer.end()
        else:
            self._begin(request, preprocessed(request), reply, writer)


class TextEngine(PythonEngine[Chat]):
    """The client's request in, OpenAI chunks out."""

    serves = (Chat,)

    def submit(self, request: Chat, reply: Reply) -> None:
        """Call the handler with the client's JSON."""
        self._begin(request, openai(request), reply, ChunkWriter(reply, self.handler.name))
