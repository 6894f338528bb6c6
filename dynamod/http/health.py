"""/health, /live, /metrics: for those who watch."""

from aiohttp import web

from dynamod.ingress.base import Backend

from .context import RequestContext
from .errors import json_response
from .exposition import CONTENT_TYPE, Exposition


class Health:
    """Answers in the original's forms."""

    def __init__(self, backend: Backend, exposition: Exposition) -> None:
        self._backend = backend
        self._exposition = exposition

    async def live(self, request: web.BaseRequest, context: RequestContext) -> web.Response:
        """The process answers."""
        return json_response({"message": "Service is live", "status": "live"})

    async def health(self, request: web.BaseRequest, context: RequestContext) -> web.Response:
        """200 when somebody can do work, else 503."""
        state = self._backend.health()
        endpoints, instances = list(state.get("endpoints", ())), list(state.get("instances", ()))
        if not endpoints:
            body = {"instances": instances, "message": "No endpoints available", "status": "unhealthy"}
            return json_response(body, 503)
        return json_response({"endpoints": endpoints, "instances": instances, "status": "healthy"})

    async def metrics(self, request: web.BaseRequest, context: RequestContext) -> web.Response:
        """Prometheus' text form."""
        return web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE})
