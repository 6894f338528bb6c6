"""Responses of the key that asks: GET and DELETE /v1/responses/{id}, .../input_items, .../cancel."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import Endpoint, Frontend
from dynamod.message.errors import BadRequest, NotFound, unsupported

from .items import LONGEST_PAGE, PAGE, ItemList, page
from .store import StoredResponse, kept_by
from .values import DeletedResponse, ResponseObject

GONE = "there is no response `{}` here; responses are kept by this frontend, the newest only"


class OneResponse(Endpoint):
    """GET /v1/responses/{id}."""

    path = "/v1/responses/{id}"
    prefix = "/v1/responses/"
    summary = "A response that was made here"
    response: ClassVar[type[msgspec.Struct]] = ResponseObject
    errors: ClassVar[tuple[int, ...]] = (400, 401, 404, 503)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """As it was. Raises NotFound, BadRequest, Overloaded."""
        stored = await self.stored(frontend, context)
        if context.request.query.get("stream", "false") != "false":
            raise unsupported("stream", "`stream` is not served here: the events of a response come once")
        return web.Response(body=stored.body, content_type="application/json")

    async def stored(self, frontend: Frontend, context: RequestContext) -> StoredResponse:
        """The response that the path names. Raises NotFound, Overloaded."""
        name = self.named(context)
        stored = await kept_by(frontend).get(name, context.caller.sees)
        if stored is None:
            raise missing(name)
        return stored


class DeleteResponse(OneResponse):
    """DELETE /v1/responses/{id}."""

    method = "DELETE"
    summary = "Keep a response no more"
    response = DeletedResponse
    errors = (401, 404, 503)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Forget it. Raises NotFound."""
        name = self.named(context)
        if not await kept_by(frontend).remove(name, context.caller.sees):
            raise missing(name)
        return json_response(DeletedResponse(name))


class InputItems(OneResponse):
    """GET /v1/responses/{id}/input_items."""

    path = "/v1/responses/{id}/input_items"
    suffix = "/input_items"
    summary = "The input of a response, with the input of the responses that it continues"
    response = ItemList
    query: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE, "default": PAGE},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
        "after": {"type": "string", "description": "Only items after the one with this id"},
    }

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """A page. Raises NotFound, BadRequest."""
        items = (await self.stored(frontend, context)).items
        key = self.named(context).removeprefix("resp_")
        return json_response(page(items, key, context.request.query))


class CancelResponse(OneResponse):
    """POST /v1/responses/{id}/cancel."""

    method = "POST"
    path = "/v1/responses/{id}/cancel"
    suffix = "/cancel"
    summary = "Always refused: only background responses can be cancelled, and there are none"

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Raises NotFound, BadRequest."""
        await self.stored(frontend, context)
        raise BadRequest("only a response that was made with `background` can be cancelled, which is not served here")


def missing(name: str) -> NotFound:
    """404 for a response that is not here."""
    return NotFound(GONE.format(name[:200]), param="id", code="response_not_found")
