"""Anthropic's Messages API on the machinery of chat completions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import AnthropicSettings

if TYPE_CHECKING:
    from dynamod.http.settings import FrontendSettings


def _endpoints() -> Sequence[object]:
    from dynamod.extension.installed import enabled

    from .endpoints import CountTokens, Messages
    from .models import AnthropicModel, AnthropicModels

    found: list[object] = [Messages(), CountTokens(), AnthropicModels(), AnthropicModel()]
    if any(one.name == "batches" for one in enabled()):
        from . import batches

        found += [batches.CreateMessageBatch(), batches.MessageBatches(), batches.OneMessageBatch()]
        found += [batches.CancelMessageBatch(), batches.DeleteMessageBatch(), batches.MessageBatchResults()]
    return found


def _part(settings: "FrontendSettings") -> AnthropicSettings:
    return msgspec.convert(settings, AnthropicSettings, from_attributes=True)


FEATURE = Feature(
    "anthropic",
    "Anthropic's Messages API: /v1/messages and its count_tokens; its form of the list of models",
    uses=("batches",),
    endpoints=_endpoints,
    part=_part,
    settings={"frontend": AnthropicSettings},
)
