"""What both writers of messages share."""

import secrets
from collections.abc import Callable
from typing import Literal

import msgspec

from dynamod.http.metrics import ModelMetrics
from dynamod.ingress.api.blocks import BlockWriter
from dynamod.ingress.api.response import Choice

from .messages import TextBlock, ThinkingBlock, ToolUseBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]

SIGNATURE = "dynamod"
"""Stands where Anthropic's servers sign reasoning. Clients send it back; it is not looked at."""
_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessagesUsage(msgspec.Struct, frozen=True):
    """Tokens of the prompt except those read from the cache, and of the answer; null where a count is not known."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class MessagesResponse(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageWriter(BlockWriter):
    """A message. `stop_string`: that which has ended it, at its end."""

    def __init__(
        self,
        request_id: str,
        model: str,
        begun: float,
        meter: ModelMetrics,
        stop_string: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(meter, begun)
        self.request_id, self.model = request_id, model
        self._stop_string = stop_string

    @property
    def id(self) -> str:
        """The message's."""
        return f"msg_{self.request_id}"

    def stop(self, choice: Choice) -> tuple[StopReason, str | None]:
        """Why the answer has ended, and by which stop sequence."""
        reason = choice.reason or "stop"
        if reason == "stop" and (found := self._stop_string()) is not None:
            return "stop_sequence", found
        return _REASONS.get(reason, "end_turn"), None

    def message_usage(self, output_tokens: int) -> MessagesUsage:
        """What an answer of so many tokens has used."""
        cached = self.cached_tokens
        return MessagesUsage(self.prompt_tokens - (cached or 0), output_tokens, cache_read_input_tokens=cached)


def new_call_id() -> str:
    """The id of a call to which the engine has given none."""
    return f"toolu_{secrets.token_hex(12)}"
