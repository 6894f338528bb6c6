"""All endpoints of the API, one line each, and the server made of them."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from aiohttp import web

import dynamod
from dynamod.extension.installed import disabled, enabled, installed
from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.icon import ICON
from dynamod.http.metrics import Collect
from dynamod.http.outlet import Outlets
from dynamod.http.records import Records
from dynamod.http.routes import Handler, Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Backend
from dynamod.message.errors import NotFound

from .chat import ChatCompletions
from .completions import Completions
from .docs import HEADERS, page
from .endpoint import Endpoint, Frontend
from .home import HEADERS as HOME_HEADERS
from .home import LINKS, home, wants_page
from .models import Models, OneModel
from .openapi import document

ENDPOINTS: tuple[Endpoint, ...] = (
    ChatCompletions(),
    Completions(),
    Models(),
    OneModel(),
)


def endpoints() -> Sequence[Endpoint]:
    """The core's endpoints and those of features that are on. Raises UserError for a wrong DYNAMOD_FEATURES."""
    return [*ENDPOINTS, *(one for feature in enabled() for one in feature.endpoints())]


def endpoints_off() -> Iterator[tuple[Endpoint, str]]:
    """Endpoints of features that are off, each with the text of the answer, which names the feature."""
    for name, why in disabled().items():
        for one in installed()[name].endpoints():
            yield one, f"this route belongs to the feature '{name}', which is off: {why}"


async def _refuse(message: str, _context: RequestContext) -> web.StreamResponse:
    raise NotFound(message, code="feature_off")


def _route(one: Endpoint, handler: Handler) -> Route:
    return Route(
        one.method,
        one.prefix or one.path,
        handler,
        guarded=True,
        prefix=bool(one.prefix),
        suffix=one.suffix,
        errors=one.error_form,
        counted=one.counted,
    )


def make_server(
    settings: FrontendSettings,
    backend: Backend,
    collect: Collect | None = None,
    own: Sequence[Route] = (),
    where: Callable[[], tuple[str, str]] = lambda: ("", ""),
    control: str = "",
) -> Server:
    """A server for everything that the backend serves; it does not listen yet.

    `own`: further routes without a key. `where()`: names of the node and of the process. `control`: path of the
    daemon's control socket; empty: there is no daemon. Raises UserError when a setting of a feature cannot be used.
    """
    known = endpoints()
    outlets = Outlets()
    frontend = Frontend(settings, backend, where, control, outlets)
    routes = [_route(one, partial(one.serve, frontend)) for one in known]
    served = {(one.method, one.path) for one in known}
    off = [(one, text) for one, text in endpoints_off() if (one.method, one.path) not in served]
    routes += [_route(one, partial(_refuse, text)) for one, text in off]

    described = cache(partial(document, known, settings, [route.path for route in own]))  # made when first asked for

    async def openapi(_context: RequestContext) -> web.Response:
        return json_response(described())

    @cache
    def drawn() -> bytes:
        return page(described()).encode()

    async def docs(_context: RequestContext) -> web.Response:
        return web.Response(body=drawn(), headers=HEADERS, content_type="text/html", charset="utf-8")

    async def root(context: RequestContext) -> web.Response:
        request = context.request
        if not wants_page(request.headers):
            return json_response(LINKS)
        origin = f"{request.scheme}://{request.headers.get('Host', 'localhost')}"
        shown = home(origin, settings.guarded).encode("utf-8", "replace")
        return web.Response(body=shown, headers=HOME_HEADERS, content_type="text/html", charset="utf-8")

    async def version(_context: RequestContext) -> web.Response:
        return json_response({"version": dynamod.__version__})

    routes += [Route("GET", "/openapi.json", openapi), Route("GET", "/docs", docs), Route("GET", "/version", version)]
    routes.append(ICON)
    if not any(route.path == "/" for route in routes):
        routes.append(Route("GET", "/", root))
    routes += own
    server = Server(settings, routes, backend.health, collect, outlets)
    for feature in enabled():
        if feature.serve is not None:
            feature.serve(frontend, server, known)
    made = [feature.records(frontend, server, where) for feature in enabled() if feature.records is not None]
    if readers := [reader for reader in made if reader is not None]:
        server.metrics.records = Records(readers, settings.proxies, where)
    return server
