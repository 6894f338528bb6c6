"""OpenAI's Responses API on the machinery of chat completions."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

from .settings import ResponsesSettings

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.http.settings import FrontendSettings
    from dynamod.ingress.api.endpoint import Frontend


def _endpoints() -> Sequence[object]:
    from .endpoints import Compact, InputTokens, Responses
    from .kept import CancelResponse, DeleteResponse, InputItems, OneResponse

    return Responses(), InputTokens(), OneResponse(), DeleteResponse(), InputItems(), CancelResponse(), Compact()


def _store(settings: "FrontendSettings") -> object:
    from .store import open_store

    return open_store(settings)


def _serve(frontend: "Frontend", server: "Server", _endpoints: Sequence[object]) -> None:
    from .store import kept_by

    server.collectors.append(partial(kept_by(frontend).families, server.metrics.prefix))


FEATURE = Feature(
    "responses",
    "OpenAI's Responses API: /v1/responses, and responses that are kept",
    endpoints=_endpoints,
    part=_store,
    serve=_serve,
    settings={"frontend": ResponsesSettings},
)
