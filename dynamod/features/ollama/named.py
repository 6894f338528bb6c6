"""What the endpoints of Ollama's API share: the setting that switches them off, and how they find a model."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from aiohttp import web

from dynamod.http.body import check_json_type
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import BodyEndpoint, Endpoint, Frontend
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound
from dynamod.message.openai import ModelRequest

from .errors import OLLAMA
from .settings import OllamaSettings

R = TypeVar("R", bound=ModelRequest)
LATEST = ":latest"
_HUBS = ("hf.co/", "huggingface.co/")


def plain(name: str, known: Mapping[str, Any]) -> str:
    """The name of a model as it is served, of a name that Ollama's clients use; else the name without `:latest`."""
    for prefix in _HUBS:
        if name not in known:
            name = name.removeprefix(prefix)
    return name if name in known else name.removesuffix(LATEST)


def settings_of(frontend: Frontend) -> OllamaSettings:
    """The settings, where the API is on. Raises NotFound."""
    settings: OllamaSettings = frontend.parts["ollama"]
    if not settings.ollama_api:
        raise NotFound("Ollama's API is off here (the setting `ollama_api`)", code="feature_off")
    return settings


class OllamaEndpoint(BodyEndpoint[R]):
    """A route about one model."""

    error_form = OLLAMA

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """As any, where the API is on."""
        settings_of(frontend)
        return await super().serve(frontend, context)

    def check_type(self, headers: Mapping[str, str]) -> None:
        """JSON may come as any type, as curl sends it, except from pages in browsers, which say where they are from."""
        if "Origin" in headers or "Sec-Fetch-Site" in headers:
            check_json_type(headers)

    def pick(self, frontend: Frontend, asked: R, context: RequestContext) -> tuple[str, ModelCard]:
        """Also by `NAME:latest`, and with the hub in front of the name."""
        return frontend.pick(plain(asked.model, frontend.models(context)), self.model_type, context)


class OllamaList(Endpoint):
    """A route without a body."""

    error_form = OLLAMA

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """As `list`, where the API is on."""
        settings_of(frontend)
        return await self.list(frontend, context)

    @abstractmethod
    async def list(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Answer. Raises RequestError."""
