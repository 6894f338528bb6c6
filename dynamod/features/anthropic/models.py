"""GET /v1/models and /v1/models/{id}: in Anthropic's form for clients that send `anthropic-version`, else OpenAI's."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import Frontend
from dynamod.ingress.api.models import Model, Models, OneModel
from dynamod.ingress.api.pages import limit_of
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, NotFound

from .errors import VERSION

USUAL, MOST = 20, 1000
"""Entries of a page."""


def shown(card: ModelCard) -> dict[str, Any]:
    """A model as Anthropic's SDKs read it."""
    made = datetime.fromtimestamp(Model.of(card.name, card).created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": card.name,
        "display_name": card.name,
        "created_at": made,
        "lifecycle": "active",
        "max_input_tokens": card.context_length or None,
        "max_tokens": card.context_length or None,
    }


def page(names: Sequence[str], show: Callable[[str], Any], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of entries, by `limit`, `after_id` and `before_id`. Raises BadRequest."""
    limit, begin, end = limit_of(query.get("limit"), USUAL, MOST), 0, len(names)
    for word in ("after_id", "before_id"):
        if (name := query.get(word)) is not None:
            if name not in names:
                raise BadRequest(f"`{word}`: the list has no entry {name[:80]!r}", param=word)
            if word == "after_id":
                begin = names.index(name) + 1
            else:
                end = names.index(name)
                begin = max(begin, end - limit)
    found = names[begin:end][:limit]
    more = begin > 0 if "before_id" in query else begin + len(found) < end
    first, last = (found[0], found[-1]) if found else (None, None)
    return {"data": [*map(show, found)], "first_id": first, "last_id": last, "has_more": more}


class AnthropicModels(Models):
    """The list."""

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """In the form that the client's headers ask for. Raises BadRequest."""
        if VERSION not in context.request.headers:
            return await super().serve(frontend, context)
        cards = {name: card for name, card in frontend.askable(context).items() if card.name == name}
        return json_response(page([*cards], lambda name: shown(cards[name]), context.request.query))


class AnthropicModel(OneModel):
    """One model."""

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """In the form that the client's headers ask for. Raises NotFound."""
        name = self.named(context)
        if VERSION not in context.request.headers or not name:
            return await super().serve(frontend, context)
        card = frontend.askable(context).get(name)
        if card is None:
            raise NotFound(f"the model `{name[:200]}` does not exist", param="model")
        return json_response(shown(card))
