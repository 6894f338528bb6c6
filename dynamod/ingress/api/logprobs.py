"""Log probabilities in OpenAI's two forms."""

from collections.abc import Sequence
from typing import Any

from dynamod.ingress.base import Logprob

_LOWEST = -9999.0  # JSON has no minus infinity


def chat_form(entries: Sequence[Logprob]) -> dict[str, Any]:
    """`{"content": [{token, bytes, logprob, top_logprobs}], "refusal": null}`."""
    content = []
    for entry in entries:
        top = [_chat_token(token, raw, value) for token, raw, value in entry.top]
        content.append(_chat_token(entry.token, entry.token_bytes, entry.value) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_form(entries: Sequence[Logprob], offset: int) -> dict[str, Any]:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; `offset` is the place of the first token in the text."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [_finite(entry.value) for entry in entries],
        "top_logprobs": [{token: _finite(value) for token, _, value in entry.top} for entry in entries],
        "text_offset": offsets,
    }


def _chat_token(token: str, raw: bytes, value: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(raw), "logprob": _finite(value)}


def _finite(value: float) -> float:
    return value if value > _LOWEST else _LOWEST
