"""Which handler answers which path. A new route is one line in `Routes.__init__` and its entry in `openapi`."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web

from dynamod.ingress.api.generate import Generate
from dynamod.ingress.api.models import Models
from dynamod.ingress.api.openapi import Document
from dynamod.ingress.base import Backend

from .context import RequestContext
from .errors import NoMethod, NoRoute
from .exposition import Exposition
from .health import Health
from .metrics import Metrics
from .settings import FrontendSettings

Handler = Callable[[web.BaseRequest, RequestContext], Awaitable[web.StreamResponse]]

MODELS = "/v1/models/"
GUARDED = "/v1/"  # paths that ask for an API key when there are any


class Routes:
    """All paths of the front door, by a dict lookup."""

    def __init__(self, settings: FrontendSettings, backend: Backend, metrics: Metrics, exposition: Exposition) -> None:
        self.generate = (
            Generate("chat", settings, backend, metrics),
            Generate("completion", settings, backend, metrics),
        )
        health, models, document = Health(backend, exposition), Models(backend), Document(settings)
        self._models = models
        self._table: dict[str, Mapping[str, Handler]] = {
            "/v1/chat/completions": {"POST": self.generate[0]},
            "/v1/completions": {"POST": self.generate[1]},
            "/v1/models": {"GET": models.all},
            "/openapi.json": {"GET": document.get},
            "/health": {"GET": health.health},
            "/live": {"GET": health.live},
            "/metrics": {"GET": health.metrics},
        }

    def find(self, method: str, path: str) -> Handler:
        """The handler; GET also answers HEAD. Raises NoRoute or NoMethod."""
        methods = self._table.get(path)
        if methods is None and path.startswith(MODELS):
            name = path[len(MODELS) :]
            methods = {"GET": partial(self._models.one, name=name)} if name else self._table["/v1/models"]
        if methods is None:
            raise NoRoute(f"unknown path: {method} {path[:200]}")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allow = ", ".join(["GET, HEAD" if name == "GET" else name for name in methods])
            raise NoMethod(f"{path[:200]} does not take {method[:20]}; it takes {allow}", allow)
        return handler
