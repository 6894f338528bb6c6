"""Anthropic's Messages API on the machinery of chat completions."""

from collections.abc import Sequence

from dynamod.extension.feature import Feature


def _endpoints() -> Sequence[object]:
    from .endpoints import CountTokens, Messages

    return Messages(), CountTokens()


FEATURE = Feature("anthropic", "Anthropic's Messages API: /v1/messages and its count_tokens", endpoints=_endpoints)
