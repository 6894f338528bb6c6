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
from dynamod.ingress.batches.records import URLS

from .adapters import LoadAdapter, UnloadAdapter
from .anthropic.messages import CountTokens, Messages
from .batches import Batches, CancelBatch, CreateBatch, OneBatch
from .chat import ChatCompletions
from .completions import Completions
from .detokenize import Detokenize
from .docs import HEADERS, page
from .embeddings import Embeddings
from .endpoint import BodyEndpoint, Endpoint, Frontend
from .files import DeleteFile, FileContent, Files, OneFile, Upload
from .models import Models, OneModel
from .openapi import document
from .render import Render
from .responses.endpoints import InputTokens, Responses
from .responses.kept import CancelResponse, DeleteResponse, InputItems, OneResponse
from .scores import Rerank, Scores
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
    InputItems(),
    CancelResponse(),
    Embeddings(),
    Scores(),
    Rerank(),
    Models(),
    OneModel(),
    LoadAdapter(),
    UnloadAdapter(),
    Render(),
    Tokenize(),
    Detokenize(),
    Upload(),
    Files(),
    OneFile(),
    DeleteFile(),
    FileContent(),
    CreateBatch(),
    Batches(),
    OneBatch(),
    CancelBatch(),
)


def make_server(
    settings: FrontendSettings,
    backend: Backend,
    collect: Collect | None = None,
    more: Sequence[Endpoint] = (),
    own: Sequence[Route] = (),
) -> Server:
    """A server for everything that the backend serves; it does not listen yet.

    `more`: endpoints of this backend, which replace those with the same path. `own`: further routes without a key.
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
            suffix=one.suffix,
            errors=one.error_form,
        )
        for one in endpoints
    ]

    described = cache(
        partial(document, endpoints, settings, [route.path for route in own])
    )  # made when first asked for

    async def openapi(_context: RequestContext) -> web.Response:
        return json_response(described())

    @cache
    def drawn() -> bytes:
        return page(described()).encode()

    async def docs(_context: RequestContext) -> web.Response:
        return web.Response(body=drawn(), headers=HEADERS, content_type="text/html", charset="utf-8")

    routes += [Route("GET", "/openapi.json", openapi), Route("GET", "/docs", docs), *own]
    server = Server(settings, routes, backend.health, collect)
    if frontend.batches is not None:
        from dynamod.ingress.batches.ask import Asker  # a frontend without batches starts sooner
        from dynamod.ingress.batches.metrics import families
        from dynamod.ingress.batches.runner import Runner

        asked = {one.path: one for one in endpoints if one.path in URLS and isinstance(one, BodyEndpoint)}
        asker = Asker(frontend, server.keys, server.metrics, asked)
        runner = Runner(frontend.batches, asker, settings.batches_inflight, settings.batches_line_limit)
        server.background.append(runner.run)
        server.collectors.append(partial(families, frontend.batches, runner.answered, server.metrics.prefix))
    return server
