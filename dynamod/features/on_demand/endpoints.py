"""Endpoints of models on demand: which are loaded, and loading and unloading by hand."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import BodyEndpoint, Endpoint, Frontend
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound
from dynamod.message.openai import ModelRequest

from .keeper import Load
from .part import PART, ModelsOnDemand
from .reports import ModelReport


class RunningModels(msgspec.Struct):
    """Models that are loaded, are being loaded, or are on their way out."""

    running: list[ModelReport]


class Done(msgspec.Struct):
    """What was asked for has been done."""

    success: bool
    model: str
    state: str


class Running(Endpoint):
    """GET /running."""

    path = "/running"
    summary = "Models that are loaded or being loaded, with their requests"
    response: ClassVar[type[msgspec.Struct]] = RunningModels
    errors = (401, 404)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The list, of the models that the client's key may ask for."""
        seen = {card.base for card in frontend.models(context).values()}
        part = _part(frontend)
        reports = part.states().values() if part is not None else ()
        rows = [one for one in reports if one.state != "unloaded" and one.model in seen]
        return json_response(RunningModels(rows))


class LoadModel(BodyEndpoint[ModelRequest]):
    """POST /models/load."""

    path = "/models/load"
    summary = "Load a model; the answer comes when it is ready"
    request = ModelRequest
    values: ClassVar[Mapping[str, Any]] = {"ModelRequest": {"examples": [{"model": "sample"}]}}
    response: ClassVar[type[msgspec.Struct]] = Done
    errors = (*BodyEndpoint.errors, 409)

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ModelRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Have it done. Raises NotFound for a model that another graph serves, Overloaded or Conflict."""
        part = _part(frontend)
        if part is None or asked.model not in part.states():
            raise NotFound(f"the model `{asked.model}` is not loaded on demand here", param="model")
        await self.act(part, asked.model)
        return json_response(Done(True, asked.model, part.states()[asked.model].state))

    async def act(self, part: ModelsOnDemand, model: str) -> None:
        """Load it."""
        await part.ask(Load(model), model)


class UnloadModel(LoadModel):
    """POST /models/unload."""

    path = "/models/unload"
    summary = "Unload a model after its running requests; the answer comes at once"

    async def act(self, part: ModelsOnDemand, model: str) -> None:
        """Begin to unload it."""
        await part.unload_model(model)


def _part(frontend: Frontend) -> ModelsOnDemand | None:
    """None in a processor without `models:`."""
    part: ModelsOnDemand | None = frontend.backend.parts.get(PART)
    return part
