"""The API as a server: all endpoints and their routes."""

from collections.abc import Sequence

from dynamod.http.exposition import Collect
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Backend

from .generate import Generate
from .models import Models
from .openapi import Document


def make_server(settings: FrontendSettings, backend: Backend, extra_collectors: Sequence[Collect] = ()) -> Server:
    """A server for everything that the backend serves; it does not listen yet."""
    models, document = Models(backend), Document(settings)
    routes = [
        Route("POST", "/v1/chat/completions", Generate("chat", settings, backend), guarded=True),
        Route("POST", "/v1/completions", Generate("completion", settings, backend), guarded=True),
        Route("GET", "/v1/models", models.all, guarded=True),
        Route("GET", "/v1/models/", models.one, guarded=True, prefix=True),
        Route("GET", "/openapi.json", document.get),
    ]
    return Server(settings, routes, backend.health, extra_collectors)
