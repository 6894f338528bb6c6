"""Endpoints of models on demand: their states, and loading and unloading by hand."""

from typing import TYPE_CHECKING, ClassVar

import msgspec
from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.errors import json_response
from dynamod.ingress.api.endpoint import BodyEndpoint, Endpoint, Frontend
from dynamod.ingress.api.models import Model, Models, OneModel
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound, RequestError
from dynamod.message.openai import ModelRequest

from .keeper import Load, ModelReport, Unload

if TYPE_CHECKING:
    from .backend import OnDemandBackend


class Conflict(RequestError):
    """Requests wait for the model."""

    status = 409
    kind = "invalid_request_error"
    code_default = "model_in_use"


class ModelOnDemand(Model, omit_defaults=True):
    """One model. `state`: unloaded, loading, ready or draining, for `seconds`. `error`: of its last load.

    Of an adapter all three are those of the model below it.
    """

    state: str = ""
    seconds: float | None = None
    error: str = ""


class ModelsOnDemand(msgspec.Struct):
    """All models."""

    object: str
    data: list[ModelOnDemand]


class RunningModels(msgspec.Struct):
    """Models that are loaded, are being loaded, or are on their way out."""

    running: list[ModelReport]


class Done(msgspec.Struct):
    """What was asked for has been done."""

    success: bool
    model: str
    state: str


class ListOnDemand(Models):
    """GET /v1/models."""

    summary = "Models that can be asked for, loaded or not"
    response: ClassVar[type[msgspec.Struct]] = ModelsOnDemand

    def __init__(self, backend: "OnDemandBackend") -> None:
        self._backend = backend

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The list, without aliases."""
        states, cards = _states(self._backend), frontend.askable(context)
        names = [*(name for name in states if name in cards), *(name for name in cards if name not in states)]
        rows = [_row(name, cards[name], states.get(cards[name].base)) for name in names if cards[name].name == name]
        return json_response(ModelsOnDemand("list", rows))


class OneOnDemand(OneModel):
    """GET /v1/models/{id}."""

    response = ModelOnDemand

    def __init__(self, backend: "OnDemandBackend") -> None:
        self._backend = backend

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """One entry, also by an alias; without an id the list. Raises NotFound."""
        card = frontend.askable(context).get(context.request.rel_url.path.removeprefix(self.prefix))
        report = _states(self._backend).get(card.base) if card is not None else None
        if card is None or report is None:
            return await super().serve(frontend, context)
        return json_response(_row(card.name, card, report))


def _states(backend: "OnDemandBackend") -> dict[str, ModelReport]:
    return {one.model: one for one in backend.keeper.reports()}


def _row(name: str, card: ModelCard, report: ModelReport | None) -> ModelOnDemand:
    row = ModelOnDemand.of(name, card)
    if report is not None:
        row.state, row.seconds, row.error = report.state, report.seconds, report.error
    return row


class Running(Endpoint):
    """GET /running."""

    path = "/running"
    summary = "Models that are loaded or being loaded, with their requests"
    response: ClassVar[type[msgspec.Struct]] = RunningModels

    def __init__(self, backend: "OnDemandBackend") -> None:
        self._backend = backend

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The list, of the models that the client's key may ask for."""
        seen = {card.base for card in frontend.models(context).values()}
        rows = [one for one in self._backend.keeper.reports() if one.state != "unloaded" and one.model in seen]
        return json_response(RunningModels(rows))


class LoadModel(BodyEndpoint[ModelRequest]):
    """POST /models/load."""

    path = "/models/load"
    summary = "Load a model; the answer comes when it is ready"
    request = ModelRequest
    response: ClassVar[type[msgspec.Struct]] = Done
    errors = (*BodyEndpoint.errors, 409)

    def __init__(self, backend: "OnDemandBackend") -> None:
        super().__init__()
        self._backend = backend

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ModelRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Have it done. Raises NotFound for a model that another graph serves, Overloaded or Conflict."""
        if asked.model not in _states(self._backend):
            raise NotFound(f"the model `{asked.model}` is not loaded on demand here", param="model")
        await self.act(asked.model)
        return json_response(Done(True, asked.model, _states(self._backend)[asked.model].state))

    async def act(self, model: str) -> None:
        """Load it."""
        await self._backend.ask(Load(model), model)


class UnloadModel(LoadModel):
    """POST /models/unload."""

    path = "/models/unload"
    summary = "Unload a model after its running requests; the answer comes at once"

    async def act(self, model: str) -> None:
        """Begin to unload it."""
        if not await self._backend.ask(Unload(model), model):
            raise Conflict(f"requests wait for the model `{model}` to be loaded", param="model")


def endpoints(backend: "OnDemandBackend") -> tuple[Endpoint, ...]:
    """One of each."""
    return (ListOnDemand(backend), OneOnDemand(backend), Running(backend), LoadModel(backend), UnloadModel(backend))
