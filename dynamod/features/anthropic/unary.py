"""A message in one piece: the same blocks, folded."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pydantic_core
from aiohttp import web

from dynamod.http.errors import printable
from dynamod.ingress.api.blocks import Kind
from dynamod.message.errors import EngineFailed

from .messages import TextBlock, ThinkingBlock, ToolUseBlock
from .writer import SIGNATURE, MessagesResponse, MessageWriter, new_call_id

_input = msgspec.json.Decoder(dict[str, Any])


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
                self._content.append(ToolUseBlock(call_id, name, self._object(text)))
            case _:
                self._content.append(TextBlock(text))

    def _object(self, text: str) -> dict[str, Any]:
        """The input of a call. Our parsers give objects; what a text engine says may be anything.

        Of a call that the limit has cut off: the members that are complete, as Anthropic's clients read a stream.
        """
        try:
            if self.choices[0].reason == "length":
                partial = pydantic_core.from_json(text or "{}", allow_partial=True)
                return partial if isinstance(partial, dict) else {}
            return _input.decode(text) if text else {}
        except (msgspec.DecodeError, RecursionError, ValueError):
            self.fail(EngineFailed("the engine has called a tool with what is no JSON object"))
            return {}

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
