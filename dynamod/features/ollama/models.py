"""Models: GET /api/tags, POST /api/show, GET /api/ps and GET /api/version."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from dynamod import __version__
from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import Frontend
from dynamod.message.discovery import ModelCard
from dynamod.parsers import NONE

from .details import OllamaDetails, described, digest_of
from .messages import OllamaShowRequest
from .named import OllamaEndpoint, OllamaList

API_VERSION = "0.12.11"
"""The release of Ollama whose API this is; some clients ask for at least 0.6.4."""
FOREVER = "2318-03-02T00:00:00Z"
"""When a model that stays is unloaded, as Ollama says it."""
_BEGUN = datetime.now(UTC)


class OllamaModel(msgspec.Struct):
    """A model that can be asked for. `size`: bytes of its files, 0 where they are on another machine."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTagsResponse(msgspec.Struct):
    """All models."""

    models: list[OllamaModel]


class OllamaRunningModel(msgspec.Struct):
    """A model that is loaded. `size_vram`: 0, engines do not say it."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaRunningResponse(msgspec.Struct):
    """The models that are loaded."""

    models: list[OllamaRunningModel]


class OllamaVersionResponse(msgspec.Struct):
    """The version of the API, and the release of this server."""

    version: str
    dynamod: str


class OllamaShowResponse(msgspec.Struct):
    """One model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Tags(OllamaList):
    """The list."""

    path = "/api/tags"
    summary = "Models that can be asked for, as Ollama has it"
    response = OllamaTagsResponse

    async def list(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The models that the client's key may ask for, without aliases."""
        cards = _cards(frontend, context)
        return json_response(OllamaTagsResponse(await asyncio.to_thread(lambda: [_tagged(card) for card in cards])))


class Running(OllamaList):
    """Loaded models."""

    path = "/api/ps"
    summary = "Models that are loaded, as Ollama has it"
    response = OllamaRunningResponse

    async def list(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The models of which a worker is ready."""
        states = {name: one for part in frontend.backend.parts.values() for name, one in part.states().items()}
        cards = [card for card in _cards(frontend, context) if _ready(states.get(card.base))]
        rows = await asyncio.to_thread(lambda: [_running(card, states.get(card.base)) for card in cards])
        return json_response(OllamaRunningResponse(rows))


class Version(OllamaList):
    """The version."""

    path = "/api/version"
    summary = "The version of Ollama whose API this is"
    response = OllamaVersionResponse

    async def list(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Both versions."""
        return json_response(OllamaVersionResponse(API_VERSION, __version__))


class Show(OllamaEndpoint[OllamaShowRequest]):
    """One model."""

    path = "/api/show"
    summary = "What is known of a model, as Ollama has it"
    request = OllamaShowRequest
    values: ClassVar[Mapping[str, Any]] = {"OllamaShowRequest": {"examples": [{"model": "sample"}]}}
    response = OllamaShowResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: OllamaShowRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """Its files' metadata, its template and what it can do."""
        found = await asyncio.to_thread(described, card)
        model = frontend.backend.model(card.name)
        capabilities = [*_capabilities(card)]
        if model is not None and model.tokenizer.infill is not None:
            capabilities.append("insert")
        answer = OllamaShowResponse(
            modelfile=f"# dynamod {__version__}\nFROM {card.path or card.name}\n",
            parameters="\n".join(f"{name:<30} {value:g}" for name, value in card.sampling_defaults.items()),
            template=model.template_source if model is not None else "",
            details=found.details,
            model_info=found.info,
            capabilities=capabilities,
            modified_at=_made(card),
        )
        return json_response(answer)


def _cards(frontend: Frontend, context: RequestContext) -> list[ModelCard]:
    return [card for name, card in frontend.askable(context).items() if card.name == name]


def _capabilities(card: ModelCard) -> Iterator[str]:
    if {"chat", "completions"} & {*card.types}:
        yield "completion"
    if "embeddings" in card.types:
        yield "embedding"
    if card.tool_call_parser not in ("", NONE):
        yield "tools"
    if card.reasoning_parser not in ("", NONE):
        yield "thinking"


def _tagged(card: ModelCard) -> OllamaModel:
    found = described(card)
    return OllamaModel(card.name, card.name, _made(card), found.size, digest_of(card), found.details)


def _ready(state: Any) -> bool:
    return state is None or state.state in ("ready", "draining")


def _running(card: ModelCard, state: Any) -> OllamaRunningModel:
    found = described(card)
    left = getattr(state, "expires_in", None)
    ends = FOREVER if left is None else _text(datetime.now(UTC) + timedelta(seconds=left))
    size = getattr(state, "memory", 0) or found.size
    return OllamaRunningModel(card.name, card.name, size, digest_of(card), found.details, ends, 0, card.context_length)


def _made(card: ModelCard) -> str:
    return _text(datetime.fromtimestamp(card.created, UTC) if card.created else _BEGUN)


def _text(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
