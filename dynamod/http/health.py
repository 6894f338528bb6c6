"""/health, /live, /metrics: for those who watch the server."""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from .context import RequestContext
from .errors import json_response
from .exposition import CONTENT_TYPE, Exposition
from .routes import Route

State = Callable[[], Mapping[str, Any]]
"""Returns `endpoints` (names of what can be asked now) and `instances` (JSON-like rows: all that are alive)."""


class Health:
    """Answers in the original's forms."""

    def __init__(self, state: State, exposition: Exposition) -> None:
        self._state = state
        self._exposition = exposition

    def routes(self) -> tuple[Route, ...]:
        """None of them asks for an API key."""
        return (
            Route("GET", "/health", self.health),
            Route("GET", "/live", self.live),
            Route("GET", "/metrics", self.metrics),
        )

    async def live(self, context: RequestContext) -> web.Response:
        """The process answers."""
        return json_response({"message": "Service is live", "status": "live"})

    async def health(self, context: RequestContext) -> web.Response:
        """200 when somebody can do work, else 503."""
        state = self._state()
        endpoints, instances = list(state.get("endpoints", ())), list(state.get("instances", ()))
        if not endpoints:
            body = {"instances": instances, "message": "No endpoints available", "status": "unhealthy"}
            return json_response(body, 503)
        return json_response({"endpoints": endpoints, "instances": instances, "status": "healthy"})

    async def metrics(self, context: RequestContext) -> web.Response:
        """Prometheus' text form."""
        return web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE})
