"""What the part of the processor knows."""

from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import Endpoint, Frontend


class Visits(Endpoint):
    path = "/v1/visits"
    summary = "A toy"
    response = None

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        part = frontend.backend.parts["visits"]
        component, linked = part.context.component, part.context.link is not None
        found = {"prepared": part.prepared, "component": component, "linked": linked}
        return web.json_response({**found, "models": sorted(part.context.cards())})
