"""OpenAI's Responses API on the machinery of chat completions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

from .settings import ResponsesSettings

if TYPE_CHECKING:
    from dynamod.http.settings import FrontendSettings


def _endpoints() -> Sequence[object]:
    from .endpoints import InputTokens, Responses
    from .kept import CancelResponse, DeleteResponse, InputItems, OneResponse

    return Responses(), InputTokens(), OneResponse(), DeleteResponse(), InputItems(), CancelResponse()


def _store(settings: "FrontendSettings") -> object:
    from .store import open_store

    return open_store(settings)


FEATURE = Feature(
    "responses",
    "OpenAI's Responses API: /v1/responses, and responses that are kept",
    endpoints=_endpoints,
    part=_store,
    settings={"frontend": ResponsesSettings},
)
