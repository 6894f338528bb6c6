"""A message in one piece: the same blocks, folded."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dynamod.ingress.api.blocks import Kind
from dynamod.message.hints import printable

from .messages import TextBlock, ThinkingBlock, ToolUseBlock
from .writer import SIGNATURE, MessagesResponse, MessageWriter, new_call_id


class MessageUnaryWriter(MessageWriter):
    """Collects a message."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._content: list[TextBlock | ThinkingBlock | ToolUseBlock] = []
        self._texts: list[str] = []
        self._of_call = ("", "")

    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """A block begins."""
        self._of_call = name, call_id or new_call_id()

    def more(self, text: str) -> None:
        """Keep it."""
        self._texts.append(text)

    def ended(self) -> None:
        """Keep the block."""
        text = printable("".join(self._texts))
        self._texts.clear()
        match self.kind:
            case "thinking":
                self._content.append(ThinkingBlock(text, SIGNATURE))
            case "tool_use":
                name, call_id = self._of_call
                self._content.append(ToolUseBlock(call_id, name, self.call_object(text)))
            case _:
                self._content.append(TextBlock(text))

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and send the message."""
        return await self.in_one_piece(self._message, headers)

    def _message(self) -> MessagesResponse:
        reason, sequence = self.stop(self.choices[0])
        usage = self.message_usage(self.completion_tokens)
        return MessagesResponse(
            id=self.id,
            model=self.model,
            content=self._content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=usage,
        )
