"""/health, /live, /metrics: for those who watch the server. None of them asks for an API key."""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from dynamod.observe.metrics import CONTENT_TYPE, exposition, load

from .context import RequestContext
from .errors import json_response
from .exposition import Collect
from .routes import Route

State = Callable[[], Mapping[str, Any]]
"""Returns `endpoints` (names of what can be asked now) and `instances` (JSON-like rows: all that are alive)."""


def health_routes(state: State, collect: Collect) -> list[Route]:
    """The routes, which answer in the original's forms. /health is 503 unless somebody can do work.

    `collect`: the families that /metrics shows.
    """

    async def live(_context: RequestContext) -> web.Response:
        return json_response({"message": "Service is live", "status": "live"})

    async def health(_context: RequestContext) -> web.Response:
        found = state()
        endpoints, instances = list(found.get("endpoints", ())), list(found.get("instances", ()))
        if not endpoints:
            body = {"instances": instances, "message": "No endpoints available", "status": "unhealthy"}
            return json_response(body, 503)
        return json_response({"endpoints": endpoints, "instances": instances, "status": "healthy"})

    async def metrics(_context: RequestContext) -> web.Response:
        await load()
        return web.Response(body=exposition(await collect()).encode(), headers={"Content-Type": CONTENT_TYPE})

    return [Route("GET", "/health", health), Route("GET", "/live", live), Route("GET", "/metrics", metrics)]
