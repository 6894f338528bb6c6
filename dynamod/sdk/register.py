"""Telling the frontends which model an endpoint serves."""

import asyncio
import enum
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod.engine.python.plain import plain
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import UserError

from .publishers import whole_number

if TYPE_CHECKING:
    from .runtime import Endpoint

log = logging.getLogger("dynamod.python")


class ModelType(enum.Enum):
    """What the handler takes and gives.

    Backend: token ids (`requests.preprocessed`) in, dicts with new `token_ids` out; everything else is done in front.
    Chat, Completion: the client's OpenAI request in, chunks of the answer out. Embedding:
    token ids of several texts (`requests.embedding`) in, dicts with `embeddings` out.
    """

    Backend = "backend"
    Chat = "chat"
    Completion = "completion"
    Embedding = "embedding"


async def register_llm(
    model_type: ModelType,
    endpoint: "Endpoint",
    model_path: str | Path,
    model_name: str | None = None,
    context_length: int | None = None,
    kv_cache_block_size: int | None = None,
    router_mode: Any = None,
    migration_limit: int = 0,
    runtime_config: Any = None,
    user_data: dict[str, Any] | None = None,
    **others: Any,
) -> None:
    """Say which model the endpoint serves; published with the instance by `serve_endpoint`, and gone with it.

    `model_path`: folder or GGUF file on this machine, `org/name` on Hugging Face with or without `hf://`, or `sample`.
    What is not here is downloaded, without weights.
    Chat and Completion engines need no files: only the name is taken from it. `context_length`: tokens, at most the
    model's own. `kv_cache_block_size`: tokens, default 16. `migration_limit`: how often a request may move to another
    instance when this one fails; above 0 a Backend engine promises that it continues after given ids as it would have
    gone on itself. Vectors may be made anywhere, so 0 is the usual 3 for
    Embedding. `user_data`: kept in the card. `router_mode`, `runtime_config` and whatever else is given have no
    effect; the frontend decides how it routes.

    Raises UserError: a model that is not there or cannot be read, an endpoint that has one.
    """
    if not isinstance(model_type, ModelType):
        raise UserError(f"{model_type!r} is no model type", f"known: {', '.join(map(str, ModelType))}")
    unused = {"router_mode": router_mode, "runtime_config": runtime_config, **others}
    for name, value in unused.items():
        if value is not None:
            log.warning("register_llm: %s=%r has no effect here", name, value)
    settings: dict[str, Any] = {
        "kv_cache_block_size": 16
        if kv_cache_block_size is None
        else _whole("kv_cache_block_size", kv_cache_block_size),
        "migration_limit": _whole("migration_limit", migration_limit, 0),
        "engine": "python",
        "user_data": None if user_data is None else plain(user_data),
    }
    if context_length is not None:
        _whole("context_length", context_length)
    if model_type is ModelType.Backend:
        settings["capabilities"] = Capabilities(exact_continuation=migration_limit > 0)
        card = await _token_card(endpoint, str(model_path), model_name, context_length, settings)
    elif model_type is ModelType.Embedding:
        settings["types"] = ("embeddings",)
        settings["migration_limit"] = settings["migration_limit"] or ModelCard(name="any").migration_limit
        card = await _token_card(endpoint, str(model_path), model_name, context_length, settings)
    else:
        settings["types"] = ("chat",) if model_type is ModelType.Chat else ("completions",)
        card = _text_card(str(model_path), model_name, context_length, settings)
    endpoint.register(card)


def _whole(name: str, value: Any, least: int = 1) -> int:
    return whole_number(f"register_llm: {name}", value, least)


async def _token_card(
    endpoint: "Endpoint", model: str, name: str | None, context_length: int | None, settings: dict[str, Any]
) -> ModelCard:
    from dynamod.observe.progress import ProgressLine
    from dynamod.preprocess.card import read_card
    from dynamod.preprocess.fetch import fetch
    from dynamod.preprocess.reference import model_name

    line = ProgressLine()

    def tell(text: str) -> None:
        line.show(text)
        endpoint.prepare(text)

    why = "interrupted"
    try:
        path = await fetch(model, tell, weights=False)
        why = ""
    finally:
        line.end(why)
        endpoint.prepare("")
    return await asyncio.to_thread(
        read_card, path, name=name or model_name(model, path), context_length=context_length, **settings
    )


def _text_card(model: str, name: str | None, context_length: int | None, settings: dict[str, Any]) -> ModelCard:
    from dynamod.preprocess.locate import local
    from dynamod.preprocess.reference import model_name

    if not name:
        name = model_name(model, local(model) or Path(model))  # raises for a path that is not there
    return ModelCard(name=name, kind="text", context_length=context_length or 0, created=int(time.time()), **settings)
