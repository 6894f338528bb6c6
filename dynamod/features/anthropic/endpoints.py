"""POST /v1/messages and POST /v1/messages/count_tokens."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import BodyEndpoint, EngineEndpoint, Frontend
from dynamod.ingress.api.response import ResponseWriter
from dynamod.ingress.api.rules import NAME, WORDS, only
from dynamod.ingress.api.translated import TranslatedChat, count_tokens
from dynamod.ingress.api.unserved import Unserved
from dynamod.ingress.base import Job
from dynamod.ingress.large import apart
from dynamod.message.discovery import ModelCard
from dynamod.message.openai import ChatRequest
from dynamod.preprocess.model import Model
from dynamod.preprocess.parse import LARGE

from .errors import ANTHROPIC
from .messages import Conversation, CountTokensRequest, MessagesRequest
from .stream import MessageStreamWriter
from .translate import check, to_chat, unserved
from .unary import MessageUnaryWriter
from .writer import MessagesResponse

R = TypeVar("R", bound=Conversation)


class ConversationEndpoint(BodyEndpoint[R]):
    """Reads a conversation in Anthropic's form."""

    model_type = "chat"
    error_form = ANTHROPIC
    rules = (
        {"properties": {"mcp_servers": {"maxItems": 0}, "thread": {"type": "null"}, "compaction": {"type": "null"}}},
        {"properties": {"container": {"type": "null"}}},
        {
            "anyOf": [
                {"properties": {"tool_choice": {"properties": {"type": {"enum": ["auto", "none"]}}}}},
                {"properties": {"tools": {"type": "array", "minItems": 1}}, "required": ["tools"]},
            ]
        },
    )

    values: ClassVar[Mapping[str, Any]] = {
        "MessagesRequest": {"examples": [{"max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}]},
        "CountTokensRequest": {"examples": [{"messages": [{"role": "user", "content": "Hello"}]}]},
        "ClientTool": {"properties": {"name": NAME}},
        "ImageBlock": {"not": {}},
        "DocumentBlock": {"not": {}},
        "ToolChoice": {
            "properties": {"name": WORDS},
            "anyOf": [only(type=("auto", "any", "none")), {"required": ["name"]}],
        },
    }

    def unserved_in(self, request: R, card: ModelCard | None = None, model: Model | None = None) -> Unserved:
        """What an operator may have left out; what the conversation consists of stays refused."""
        return unserved(request, card)

    def check(self, request: R) -> None:
        """Its blocks too."""
        check(request)


class Messages(ConversationEndpoint[MessagesRequest]):
    """Answers a conversation with a message."""

    path = "/v1/messages"
    summary = "Answer a conversation, as Anthropic has it"
    request = MessagesRequest
    response = MessagesResponse
    streams = True
    errors = EngineEndpoint.errors
    label = "messages"

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: MessagesRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend work on the chat request that it means, and respond with a message."""
        chat = await translated(asked, frontend, len(body))
        return await MessageAnswer().answer(frontend, context, chat, card, body)


class CountTokensResponse(msgspec.Struct):
    """Tokens of the prompt."""

    input_tokens: int


class CountTokens(ConversationEndpoint[CountTokensRequest]):
    """Counts the tokens of a prompt."""

    path = "/v1/messages/count_tokens"
    summary = "Tokens of the prompt that a conversation makes"
    request = CountTokensRequest
    response = CountTokensResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: CountTokensRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The tokenizer's count; a long prompt is tokenised in a thread. Raises TooLarge."""
        model = frontend.tokenizing(asked.model)
        chat = await translated(asked, frontend, len(body))
        return json_response(CountTokensResponse(await count_tokens(model, chat, len(body) > LARGE)))


class MessageAnswer(TranslatedChat):
    """A chat request that is answered with a message."""

    api = "messages"

    def writer(
        self, request: ChatRequest, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ResponseWriter:
        """A writer of events or of the message in one piece."""
        common = (job.id, request.model, context.begun, meter, self.stop_string)
        if request.stream:
            return MessageStreamWriter(*common, settings, context.request.version)
        return MessageUnaryWriter(*common)


async def translated(asked: Conversation, frontend: Frontend, size: int) -> ChatRequest:
    """The chat request that a body of this size means. Raises BadRequest."""
    strip = frontend.parts["anthropic"].strip_anthropic_preamble
    return await apart(to_chat, asked, strip) if size > LARGE else to_chat(asked, strip)
