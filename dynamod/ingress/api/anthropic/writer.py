"""What both writers of messages share: text, reasoning and calls of an answer as blocks, in order."""

import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from dynamod.http.metrics import ModelMetrics
from dynamod.ingress.api.response import Choice, ResponseWriter
from dynamod.message.anthropic import TextBlock, ThinkingBlock, ToolUseBlock

Kind = Literal["text", "thinking", "tool_use"]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]

SIGNATURE = "dynamod"
"""Stands where Anthropic's servers sign reasoning. Clients send it back; it is not looked at."""
_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessagesUsage(msgspec.Struct, frozen=True):
    """Tokens of the whole prompt and of the answer. How many were cached is null where it is not known."""

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


class MessageWriter(ResponseWriter):
    """Opens, continues and closes blocks as the answer says it. `stop_string`: that which has ended it, at its end."""

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
        self.kind: Kind | None = None  # of the open block
        self.blocks = 0  # that have been opened
        self._call = -1  # the engine's number of the call that is open

    @property
    def id(self) -> str:
        """The message's."""
        return f"msg_{self.request_id}"

    @abstractmethod
    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """A block begins. `name`, `call_id`: of a call."""

    @abstractmethod
    def more(self, text: str) -> None:
        """Text of the open block; of a call the JSON of its input."""

    @abstractmethod
    def ended(self) -> None:
        """The open block is complete."""

    def add(self, kind: Literal["text", "thinking"], text: str) -> None:
        """Text of a block of this kind."""
        if self.kind != kind:
            self._open(kind)
        self.more(text)

    def stop(self, choice: Choice) -> tuple[StopReason, str | None]:
        """Why the answer has ended, and by which stop sequence."""
        reason = choice.reason or "stop"
        if reason == "stop" and (found := self._stop_string()) is not None:
            return "stop_sequence", found
        return _REASONS.get(reason, "end_turn"), None

    def message_usage(self, output_tokens: int) -> MessagesUsage:
        """What an answer of so many tokens has used."""
        return MessagesUsage(self.prompt_tokens, output_tokens)

    def _open(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        self._close()
        self.kind, self._call = kind, -1
        self.blocks += 1
        self.opened(kind, name, call_id)

    def _close(self) -> None:
        if self.kind is not None:
            self.ended()
            self.kind = None

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        delta = part.get("delta") or {}
        names = ("reasoning_content", "reasoning", "thinking")
        if thought := next((value for name in names if (value := delta.get(name))), None):
            self.add("thinking", thought + "")  # TypeError for what is no text
        if content := part.get("text", delta.get("content")) or delta.get("refusal"):
            self.add("text", content + "")
        for call in delta.get("tool_calls") or ():
            self._piece(call)

    def _piece(self, piece: Mapping[str, Any]) -> None:
        """A piece of a call: its number, id and name come once, its arguments in pieces."""
        function, place = piece.get("function") or {}, piece.get("index")
        name, arguments = function.get("name"), function.get("arguments")
        if self.kind != "tool_use" or (place != self._call if place is not None else name):
            if not name:
                raise ValueError("a call of a tool without a name")
            self._open("tool_use", name + "", piece.get("id") or f"toolu_{secrets.token_hex(12)}")
            self._call = cast("int", self.blocks if place is None else place)
        if arguments:
            self.more(arguments + "")

    def _finished(self, choice: Choice) -> None:
        self._close()
