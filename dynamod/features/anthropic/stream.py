"""A streamed message: each piece of a block becomes an event and leaves in the same call, unless the client is slow.

Order: message_start, ping, then per block content_block_start, content_block_delta and content_block_stop; at the end
message_delta with the stop reason and the usage, and message_stop.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import HttpVersion, HttpVersion11

from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.http.stream import EventFrames
from dynamod.ingress.api.blocks import BlockStreamWriter, Kind
from dynamod.ingress.api.response import Choice
from dynamod.message.errors import Overloaded, RequestError
from dynamod.message.hints import printable

from .errors import error_value
from .writer import SIGNATURE, MessagesResponse, MessageWriter, new_call_id

IDLE = 15.0
"""Seconds of silence in a message after which a ping is sent."""
_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
_encode = msgspec.json.Encoder().encode


class MessageFrames(EventFrames):
    """Makes the frames of one message."""

    def comment(self, text: str) -> bytes:
        """A ping, whatever there is to say."""
        return self.typed({"type": "ping"})

    def typed(self, value: Mapping[str, Any]) -> bytes:
        """An event that is called as the type of its value."""
        return self.event(value["type"], _encode(value))

    def delta(self, prefix: bytes, text: str) -> bytes:
        """A piece of a block: the hot path."""
        try:
            content = _encode(text)
        except UnicodeEncodeError:
            content = _encode(printable(text))
        return self.frame(b"".join((prefix, content, b"}}\n\n")))


class MessageStreamWriter(BlockStreamWriter, MessageWriter):
    """Makes the events of one message."""

    def __init__(
        self,
        request_id: str,
        model: str,
        begun: float,
        meter: ModelMetrics,
        stop_string: Callable[[], str | None],
        settings: FrontendSettings,
        version: HttpVersion = HttpVersion11,
    ) -> None:
        self._frames = MessageFrames(version >= HttpVersion11)
        super().__init__(
            *(request_id, model, begun, meter, stop_string),
            frames=self._frames,
            keep_alive=settings.keep_alive,
            idle=IDLE,
        )
        self._overload_status = settings.overload_status
        self._prefix = b""  # of the open block's deltas

    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """A block begins, and the message with the first."""
        self._begin()
        block: dict[str, Any] = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        elif kind == "tool_use":
            block = {"type": kind, "id": call_id or new_call_id(), "name": name, "input": {}}
        index = self.blocks - 1
        self._send({"type": "content_block_start", "index": index, "content_block": block})
        delta = _encode({"type": _DELTAS[kind], _FIELDS[kind]: ""}).removesuffix(b'""}')
        self._prefix = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b' % (
            index,
            delta,
        )

    def delta(self, text: str) -> bytes:
        """A piece of the open block."""
        return self._frames.delta(self._prefix, text)

    def ended(self) -> None:
        """The open block is complete."""
        super().ended()
        index = self.blocks - 1
        if self.kind == "thinking":
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            self._send({"type": "content_block_delta", "index": index, "delta": signed})
        self._send({"type": "content_block_stop", "index": index})

    def fail_event(self, error: RequestError) -> None:
        """The stream ends here with Anthropic's error object."""
        status = self._overload_status if isinstance(error, Overloaded) else error.status
        self._send(error_value(error, status, self.request_id))

    def _begin(self) -> None:
        if self.blocks > 1:
            return
        message = MessagesResponse(
            id=self.id, model=self.model, content=[], stop_reason=None, stop_sequence=None, usage=self.message_usage(0)
        )
        self._send({"type": "message_start", "message": message})
        self._send({"type": "ping"})

    def _send(self, value: Mapping[str, Any]) -> None:
        self._ready.append(self._frames.typed(value))

    def _finished(self, choice: Choice) -> None:
        super()._finished(choice)
        if not self.blocks:
            self._begin()
        reason, sequence = self.stop(choice)
        ending = {"stop_reason": reason, "stop_sequence": sequence}
        self._send({"type": "message_delta", "delta": ending, "usage": self.message_usage(self.completion_tokens)})
        self._send({"type": "message_stop"})
        self.events.push(self)
