"""/v1/models: what can be asked for now."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import NotFound
from dynamod.parsers import NONE

from .endpoint import Endpoint, Frontend

_SINCE = int(time.time())


class Model(msgspec.Struct, omit_defaults=True):
    """One model. The context length, 0 for not known, has the names of two servers. Parsers: empty for none.

    `types`: what it serves. `embedding_length`: numbers of its vectors, 0 for not known. `root`, `parent`: of an
    adapter its path on the worker and the model below it, as vLLM has them. `state`, for `seconds`, and `error`: of the
    worker that is started when a request asks for the model, or for the model below an adapter.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int = 0
    context_length: int = 0
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    embedding_length: int = 0
    types: tuple[str, ...] = ()
    root: str = ""
    parent: str = ""
    state: str = ""
    seconds: float | None = None
    error: str = ""

    @classmethod
    def of(cls, name: str, card: ModelCard) -> Self:
        """The model of a card."""
        length, parsers = card.context_length, (card.tool_call_parser, card.reasoning_parser)
        calls, reasoning = [parser if parser != NONE else "" for parser in parsers]
        made = cls(name, "model", card.created or _SINCE, "dynamod", length, length, calls, reasoning)
        made.embedding_length, made.types = card.embedding_length, card.types
        if card.adapter is not None:
            made.root, made.parent = card.adapter.path, card.parent
        return made


class ModelList(msgspec.Struct):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class Models(Endpoint):
    """GET /v1/models."""

    path = "/v1/models"
    summary = "Models that can be asked for"
    response: ClassVar[type[msgspec.Struct]] = ModelList

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The list."""
        states, cards = _states(frontend), frontend.askable(context)
        names = [*(name for name in states if name in cards), *(name for name in cards if name not in states)]
        rows = [_row(cards[name], states) for name in names if cards[name].name == name]  # without aliases
        return json_response(ModelList("list", rows))


class OneModel(Models):
    """GET /v1/models/{id}."""

    path = "/v1/models/{id}"
    prefix = "/v1/models/"
    summary = "One model; its id may contain slashes"
    response = Model
    errors = (401, 404)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """One entry; without an id the list. Raises NotFound."""
        name = context.request.rel_url.path.removeprefix(self.prefix)
        if not name:
            return await super().serve(frontend, context)
        card = frontend.askable(context).get(name)
        if card is None:
            raise NotFound(f"the model `{name[:200]}` does not exist", param="model")
        return json_response(_row(card, _states(frontend)))


def _states(frontend: Frontend) -> Mapping[str, Any]:
    return {name: one for part in frontend.backend.parts.values() for name, one in part.states().items()}


def _row(card: ModelCard, states: Mapping[str, Any]) -> Model:
    row, worker = Model.of(card.name, card), states.get(card.base)
    if worker is not None:
        row.state, row.seconds, row.error = worker.state, worker.seconds, worker.error
    return row
