"""POST /v1/responses, POST /v1/responses/input_tokens."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Literal

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import BodyEndpoint, EngineEndpoint, Frontend
from dynamod.ingress.api.response import ResponseWriter
from dynamod.ingress.api.translated import TranslatedChat, count_tokens
from dynamod.ingress.api.unserved import Unserved, field_of
from dynamod.ingress.base import Job
from dynamod.ingress.large import apart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, NotFound, unsupported
from dynamod.message.openai import ChatRequest, Message
from dynamod.preprocess.model import Model
from dynamod.preprocess.parse import LARGE

from .items import SEALED, as_input, items_of, resolved
from .kept import GONE
from .messages import CompactRequest, InputTokensRequest, ResponsesRequest
from .rules import VALUES
from .store import ResponseStore, StoredResponse, kept_by
from .tools import by_name, left_out
from .translate import check, input_messages, to_chat, unscored, unserved
from .values import ResponseObject, begun, message_of
from .writer import ResponseStreamWriter, ResponseUnaryWriter


class InputEndpoint(BodyEndpoint[ResponsesRequest]):
    """Reads an input that may continue from a response."""

    request = ResponsesRequest
    model_type = "chat"
    values: ClassVar[Mapping[str, Any]] = VALUES

    def unserved_in(
        self, request: ResponsesRequest, card: ModelCard | None = None, model: Model | None = None
    ) -> Unserved:
        """What an operator may have left out; what the conversation consists of stays refused."""
        return unserved(request, card)

    def check(self, request: ResponsesRequest) -> None:
        """Its items too."""
        check(request)

    async def chat(self, asked: ResponsesRequest, previous: StoredResponse | None, size: int) -> ChatRequest:
        """The chat request that a body of this size means. `previous`: what it continues from. Raises BadRequest."""
        history = previous.messages if previous is not None else ()
        return await apart(to_chat, asked, history) if size > LARGE else to_chat(asked, history)

    @staticmethod
    async def whole(
        frontend: Frontend, context: RequestContext, asked: ResponsesRequest
    ) -> tuple[ResponsesRequest, StoredResponse | None]:
        """The request with the items that it refers to, and the response that it continues from.

        Raises NotFound, Overloaded.
        """
        owner = context.caller.sees
        asked = await resolved(asked, kept_by(frontend), owner)
        name = asked.previous_response_id
        previous = await kept_by(frontend).get(name, owner) if name is not None else None
        if name is not None and previous is None:
            field, code = "previous_response_id", "previous_response_not_found"
            raise NotFound(GONE.format(name[:200]), param=field, code=code)
        return asked, previous


class InputTokensResponse(msgspec.Struct):
    """Tokens of the prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class InputTokens(InputEndpoint):
    """Counts the tokens of a prompt."""

    path = "/v1/responses/input_tokens"
    summary = "Tokens of the prompt that an input makes"
    request = InputTokensRequest
    response = InputTokensResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ResponsesRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The tokenizer's count. Raises NotFound, TooLarge."""
        model = frontend.tokenizing(asked.model)
        asked, previous = await self.whole(frontend, context, asked)
        chat = await self.chat(asked, previous, len(body))
        return json_response(InputTokensResponse(await count_tokens(model, chat, len(body) > LARGE)))


class Compact(BodyEndpoint[CompactRequest]):
    """Says that conversations are not compacted here."""

    path = "/v1/responses/compact"
    summary = "Not served: a conversation is shortened by its client"
    request = CompactRequest
    values: ClassVar[Mapping[str, Any]] = {"CompactRequest": {"examples": [{"input": "Hello"}]}}
    response: ClassVar[type[msgspec.Struct]] = InputTokensResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: CompactRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """Raises BadRequest."""
        how = "ask the model for a summary with /v1/responses, or leave out old items of `input`"
        raise BadRequest(f"/v1/responses/compact is not served: {how}", code="unsupported_route")


class Responses(InputEndpoint):
    """Answers with a response."""

    path = "/v1/responses"
    summary = "Answer an input, or continue an earlier response"
    response = ResponseObject
    streams = True
    errors = EngineEndpoint.errors
    label = "responses"

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ResponsesRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend work on the chat that it means, and respond with its items. Raises NotFound, BadRequest."""
        for path, why in unscored(asked, card):
            raise unsupported(field_of(path), why)
        asked, previous = await self.whole(frontend, context, asked)
        context.metrics.unsupported_fields.update(f"tools.{kind}" for kind in left_out(asked.tools))
        chat = await self.chat(asked, previous, len(body))
        kept = None if asked.store is False else kept_by(frontend)
        return await ResponseAnswer(asked, previous, kept).answer(frontend, context, chat, card, body)


class ResponseAnswer(TranslatedChat):
    """A chat request that is answered with a response. `kept`: where that is stored."""

    api, object_arguments = "responses", False

    def __init__(self, asked: ResponsesRequest, previous: StoredResponse | None, kept: ResponseStore | None) -> None:
        super().__init__()
        self._asked, self._previous, self._kept = asked, previous, kept

    def writer(
        self, request: ChatRequest, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ResponseWriter:
        """A writer of events or of the response in one piece."""
        response = begun(self._asked, request.model)
        keep = partial(self._keep, context.caller.owner)
        common, version = (response, context.begun, meter, keep), context.request.version
        stream = bool(request.stream)
        writer = ResponseStreamWriter(*common, settings, version) if stream else ResponseUnaryWriter(*common)
        writer.sealed, writer.tools = SEALED in (self._asked.include or ()), by_name(self._asked.tools)
        writer.summary = self._asked.reasoning is not None and self._asked.reasoning.summary is not None
        return writer

    def _keep(self, owner: str, response: ResponseObject) -> "Future[None] | None":
        if self._kept is None:
            return None
        messages: Sequence[Message] = (*input_messages(self._asked), message_of(response))
        items, answer = items_of(self._asked), tuple([as_input(item) for item in response.output])
        if (previous := self._previous) is not None:
            messages = (*previous.messages, *messages)
            items = (*previous.items, *previous.answer, *items)
        body = msgspec.json.encode(response)
        return self._kept.put(response.id, StoredResponse(body, tuple(messages), tuple(items), answer), owner)
