"""POST /v1/responses, POST /v1/responses/input_tokens, GET and DELETE /v1/responses/{id}."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.errors import json_response
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import BodyEndpoint, Endpoint, EngineEndpoint, Frontend
from dynamod.ingress.api.response import ResponseWriter
from dynamod.ingress.api.translated import TranslatedChat, count_tokens
from dynamod.ingress.base import Job
from dynamod.ingress.large import apart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound
from dynamod.message.openai import ChatRequest, Message
from dynamod.message.responses import ResponsesRequest
from dynamod.preprocess.scan import LARGE

from .store import ResponseStore, StoredResponse
from .translate import check, input_messages, to_chat
from .values import ResponseObject, begun, message_of
from .writer import ResponseStreamWriter, ResponseUnaryWriter

_GONE = "there is no response `{}` here; responses are kept in the memory of one frontend, the newest only"


class InputEndpoint(BodyEndpoint[ResponsesRequest]):
    """Reads an input that may go on from a response."""

    request = ResponsesRequest
    model_type = "chat"

    def check(self, request: ResponsesRequest) -> None:
        """Its items too."""
        check(request)

    async def chat(self, frontend: Frontend, asked: ResponsesRequest, size: int) -> ChatRequest:
        """The chat request that a body of this size means. Raises BadRequest, NotFound."""
        history = self.history(frontend, asked)
        return await apart(to_chat, asked, history) if size > LARGE else to_chat(asked, history)

    @staticmethod
    def history(frontend: Frontend, asked: ResponsesRequest) -> Sequence[Message]:
        """The conversation that it goes on. Raises NotFound."""
        previous = asked.previous_response_id
        if previous is None:
            return ()
        if (stored := frontend.responses.get(previous)) is None:
            field, code = "previous_response_id", "previous_response_not_found"
            raise NotFound(_GONE.format(previous[:200]), param=field, code=code)
        return stored.messages


class InputTokensResponse(msgspec.Struct):
    """Tokens of the prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class InputTokens(InputEndpoint):
    """Counts the tokens of a prompt."""

    path = "/v1/responses/input_tokens"
    summary = "Tokens of the prompt that an input makes"
    response = InputTokensResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ResponsesRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The tokenizer's count. Raises NotFound, TooLarge."""
        model = frontend.tokenizing(asked.model)
        chat = await self.chat(frontend, asked, len(body))
        return json_response(InputTokensResponse(await count_tokens(model, chat, len(body) > LARGE)))


class Responses(InputEndpoint):
    """Answers with a response."""

    path = "/v1/responses"
    summary = "Answer an input, or go on from an earlier response"
    response = ResponseObject
    streams = True
    errors = EngineEndpoint.errors
    label = "responses"

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ResponsesRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend work on the chat request that it means, and respond with its items. Raises NotFound."""
        history, chat = self.history(frontend, asked), await self.chat(frontend, asked, len(body))
        kept = None if asked.store is False else frontend.responses
        return await ResponseAnswer(asked, history, kept).answer(frontend, context, chat, card, body)


class ResponseAnswer(TranslatedChat):
    """A chat request that is answered with a response. `kept`: where that is stored."""

    def __init__(self, asked: ResponsesRequest, history: Sequence[Message], kept: ResponseStore | None) -> None:
        super().__init__()
        self._asked, self._history, self._kept = asked, history, kept

    def writer(
        self, request: ChatRequest, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ResponseWriter:
        """A writer of events or of the response in one piece."""
        response = begun(self._asked, request.model)
        if request.stream:
            version = context.request.version
            return ResponseStreamWriter(response, context.begun, meter, self._keep, settings, version)
        return ResponseUnaryWriter(response, context.begun, meter, self._keep)

    def _keep(self, response: ResponseObject) -> None:
        if self._kept is None:
            return
        messages = (*self._history, *input_messages(self._asked), message_of(response))
        self._kept.put(response.id, StoredResponse(msgspec.json.encode(response), messages))


class OneResponse(Endpoint):
    """GET /v1/responses/{id}."""

    path = "/v1/responses/{id}"
    prefix = "/v1/responses/"
    summary = "A response that was made here"
    response: ClassVar[type[msgspec.Struct]] = ResponseObject
    errors = (401, 404)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """As it was. Raises NotFound."""
        name = self.named(context)
        stored = frontend.responses.get(name)
        if stored is None:
            raise missing(name)
        return web.Response(body=stored.body, content_type="application/json")

    def named(self, context: RequestContext) -> str:
        """The id."""
        return context.request.rel_url.path.removeprefix(self.prefix)


class DeletedResponse(msgspec.Struct):
    """The response is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class DeleteResponse(OneResponse):
    """DELETE /v1/responses/{id}."""

    method = "DELETE"
    summary = "Keep a response no more"
    response = DeletedResponse

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Forget it. Raises NotFound."""
        name = self.named(context)
        if not frontend.responses.remove(name):
            raise missing(name)
        return json_response(DeletedResponse(name))


def missing(name: str) -> NotFound:
    """404 for a response that is not here."""
    return NotFound(_GONE.format(name[:200]), param="id", code="response_not_found")
