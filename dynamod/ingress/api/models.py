"""/v1/models: what can be asked for now."""

import time
from typing import Any

from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.errors import json_response
from dynamod.ingress.base import Backend
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound


class Models:
    """The list and, with an id behind the path (slashes included), one entry."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._since = int(time.time())

    async def all(self, request: web.BaseRequest, context: RequestContext) -> web.Response:
        """GET /v1/models."""
        rows = [self._row(name, card) for name, card in self._backend.models().items()]
        return json_response({"object": "list", "data": rows})

    async def one(self, request: web.BaseRequest, context: RequestContext) -> web.Response:
        """GET /v1/models/{id}; without an id the list. Raises NotFound."""
        name = request.rel_url.path.removeprefix("/v1/models/")
        if not name:
            return await self.all(request, context)
        card = self._backend.models().get(name)
        if card is None:
            raise NotFound(f"the model `{name[:200]}` does not exist", param="model")
        return json_response(self._row(name, card))

    def _row(self, name: str, card: ModelCard) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": card.created or self._since,
            "owned_by": "dynamod",
        }
        if card.context_length:
            row["max_model_len"] = row["context_length"] = card.context_length
        return row
