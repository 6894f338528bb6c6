"""POST /api/chat and POST /api/generate."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.completions import Completions
from dynamod.ingress.api.endpoint import EngineEndpoint, Frontend
from dynamod.ingress.api.response import ResponseWriter
from dynamod.ingress.api.rules import NAME, NULL, either, items, only, set_to, typed
from dynamod.ingress.api.translated import TranslatedChat
from dynamod.ingress.api.unserved import Unserved
from dynamod.ingress.base import Job
from dynamod.ingress.large import apart
from dynamod.message.discovery import ModelCard
from dynamod.message.openai import ChatRequest, Common, CompletionRequest
from dynamod.preprocess.conversation import check_tools
from dynamod.preprocess.model import Model
from dynamod.preprocess.parse import LARGE

from .loading import load_or_unload
from .messages import Asking, OllamaChatRequest, OllamaGenerateRequest
from .named import OllamaEndpoint
from .translate import check, to_chat, to_completion, unserved
from .writer import (
    NDJSON,
    Make,
    OllamaChatResponse,
    OllamaGenerateResponse,
    OllamaStreamWriter,
    OllamaUnaryWriter,
    chat_line,
    generate_line,
    now,
)

R = TypeVar("R", bound=Asking)
_TOOL = typed("function", function={"type": "object", "properties": {"name": NAME}, "required": ["name"]})


class Answering(OllamaEndpoint[R]):
    """Answers with text. `make`: makes a line of the answer."""

    streams = NDJSON
    errors = (*EngineEndpoint.errors, 409)
    make: ClassVar[Make]
    rules: ClassVar[Sequence[Mapping[str, Any]]] = (either(only(top_logprobs=(0, None)), set_to("logprobs", True)),)

    def unserved_in(self, request: R, card: ModelCard | None = None, model: Model | None = None) -> Unserved:
        """What an operator may have left out."""
        return unserved(request, card)

    def check(self, request: R) -> None:
        """Images, and fields that do not fit each other."""
        check(request)

    async def loaded(self, frontend: Frontend, asked: R) -> web.Response:
        """Answer a request without a prompt: the model is loaded or unloaded. Raises RequestError."""
        reason = await load_or_unload(frontend, asked.model, asked.keep_alive)
        return json_response(
            type(self).make("", "", [], model=asked.model, created_at=now(), done=True, done_reason=reason)
        )


class Chat(Answering[OllamaChatRequest]):
    """Answers a conversation."""

    path = "/api/chat"
    summary = "Answer a conversation, as Ollama has it"
    request = OllamaChatRequest
    response = OllamaChatResponse
    label = "ollama_chat"
    model_type = "chat"
    make = staticmethod(chat_line)
    values: ClassVar[Mapping[str, Any]] = {
        "OllamaMessage": {"properties": {"images": either(NULL, {"type": "array", "maxItems": 0})}},
        "OllamaChatRequest": {
            "examples": [{"messages": [{"role": "user", "content": "Hello"}]}],
            "properties": {"tools": either(NULL, items(_TOOL))},
        },
    }

    def check(self, request: OllamaChatRequest) -> None:
        """The tools too."""
        super().check(request)
        check_tools(request.tools, None)

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: OllamaChatRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend work on the chat that it means."""
        if not asked.messages:
            return await self.loaded(frontend, asked)
        chat = await apart(to_chat, asked) if len(body) > LARGE else to_chat(asked)
        return await OllamaChat(type(self).make).answer(frontend, context, chat, card, body)


class Generate(Answering[OllamaGenerateRequest]):
    """Answers a prompt."""

    path = "/api/generate"
    summary = "Answer a prompt, as Ollama has it"
    request = OllamaGenerateRequest
    response = OllamaGenerateResponse
    label = "ollama_generate"
    make = staticmethod(generate_line)
    values: ClassVar[Mapping[str, Any]] = {
        "OllamaGenerateRequest": {"examples": [{"prompt": "Hello", "stream": False}]}
    }
    rules = (
        *Answering.rules,
        {
            "properties": {
                **only(template=(None, ""), context=(None, []), images=(None, []))["properties"],
                **dict.fromkeys(("width", "height", "steps"), NULL),
            }
        },
    )

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: OllamaGenerateRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend work on the chat or, for a prompt as it is, on the completion that it means."""
        if not asked.prompt and not asked.suffix:
            return await self.loaded(frontend, asked)
        if asked.raw or asked.suffix or "chat" not in card.types:
            frontend.pick(asked.model, "completions", context)
            completion = to_completion(asked)
            return await OllamaCompletion(type(self).make).answer(frontend, context, completion, card, body)
        chat = await apart(to_chat, asked) if len(body) > LARGE else to_chat(asked)
        return await OllamaChat(type(self).make).answer(frontend, context, chat, card, body)


def _writer(
    make: Make, request: Common, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
) -> ResponseWriter:
    common = (make, request.model, meter, context.begun)
    if request.stream:
        return OllamaStreamWriter(*common, settings, context.request.version)
    return OllamaUnaryWriter(*common)


class OllamaChat(TranslatedChat):
    """A chat that is answered in Ollama's form."""

    timed = True

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._make = make

    def writer(
        self, request: ChatRequest, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ResponseWriter:
        """A writer of lines or of the answer in one piece."""
        return _writer(self._make, request, context, meter, settings)


class OllamaCompletion(Completions):
    """A completion that is answered in Ollama's form; one object per request."""

    timed = True

    def __init__(self, make: Make) -> None:  # nothing is read: the completion is there
        self._make = make

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: CompletionRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Without the limit of `completion_max_tokens`; a text engine gets the body of the completion."""
        self.check(asked)
        if frontend.backend.model(asked.model) is None:
            fields = cast("dict[str, Any]", msgspec.to_builtins(asked))
            body = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
        return await EngineEndpoint.answer(self, frontend, context, asked, card, body)

    def writer(
        self,
        request: CompletionRequest,
        job: Job,
        context: RequestContext,
        meter: ModelMetrics,
        settings: FrontendSettings,
    ) -> ResponseWriter:
        """A writer of lines or of the answer in one piece."""
        return _writer(self._make, request, context, meter, settings)
