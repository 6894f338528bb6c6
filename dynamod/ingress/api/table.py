"""All endpoints of the API, one line each, and the server made of them."""

from collections.abc import Sequence
from functools import cache, partial

from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.errors import json_response
from dynamod.http.metrics import Collect
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Backend

from .anthropic.messages import CountTokens, Messages
from .chat import ChatCompletions
from .completions import Completions
from .detokenize import Detokenize
from .endpoint import Endpoint, Frontend
from .models import Models, OneModel
from .openapi import document
from .responses.endpoints import DeleteResponse, InputTokens, OneResponse, Responses
from .tokenize import Tokenize

ENDPOINTS: tuple[Endpoint, ...] = (
    ChatCompletions(),
    Completions(),
    Messages(),
    CountTokens(),
    Responses(),
    InputTokens(),
    OneResponse(),
    DeleteResponse(),
    Models(),
    OneModel(),
    Tokenize(),
    Detokenize(),
)


def make_server(
    settings: FrontendSettings, backend: Backend, collect: Collect | None = None, more: Sequence[Endpoint] = ()
) -> Server:
    """A server for everything that the backend serves; it does not listen yet.

    `more`: endpoints of this backend, which take the place of those with the same path.
    """
    endpoints = (*{(one.method, one.path): one for one in (*ENDPOINTS, *more)}.values(),)
    frontend = Frontend(settings, backend)
    routes = [
        Route(
            one.method,
            one.prefix or one.path,
            partial(one.serve, frontend),
            guarded=True,
            prefix=bool(one.prefix),
            errors=one.error_form,
        )
        for one in endpoints
    ]

    described = cache(partial(document, endpoints, settings))  # made when first asked for

    async def openapi(_context: RequestContext) -> web.Response:
        return json_response(described())

    return Server(settings, [*routes, Route("GET", "/openapi.json", openapi)], backend.health, collect)
