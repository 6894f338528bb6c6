"""Ollama's API on the machinery of chats, completions and embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import OllamaSettings

if TYPE_CHECKING:
    from dynamod.http.settings import FrontendSettings


def _endpoints() -> Sequence[object]:
    from dynamod.extension.installed import enabled

    from .endpoints import Chat, Generate
    from .manage import REFUSED, Delete, Pull
    from .models import Running, Show, Tags, Version

    found: list[object] = [Chat(), Generate(), Tags(), Show(), Running(), Version(), Pull(), Delete()]
    found += [make() for make in REFUSED]
    if any(one.name == "embeddings" for one in enabled()):
        from .embed import Embed, Embeddings

        found += [Embed(), Embeddings()]
    return found


def _part(settings: "FrontendSettings") -> OllamaSettings:
    return msgspec.convert(settings, OllamaSettings, from_attributes=True)


FEATURE = Feature(
    "ollama",
    "the API of Ollama, for its clients",
    uses=("embeddings",),
    endpoints=_endpoints,
    part=_part,
    settings={"frontend": OllamaSettings},
)
