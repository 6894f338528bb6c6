"""A streamed message: each piece of a block becomes an event and leaves in the same call, unless the client is slow.

Order: message_start, ping, then per block content_block_start, content_block_delta and content_block_stop; at the end
message_delta with the stop reason and the usage, and message_stop.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import HttpVersion, HttpVersion11, web

from dynamod.http.errors import printable
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.http.stream import HIGH_WATER, EventFrames, EventStream
from dynamod.ingress.api.response import Choice
from dynamod.message.errors import Overloaded, RequestError

from .errors import error_value
from .writer import SIGNATURE, Kind, MessagesResponse, MessageWriter

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


class MessageStreamWriter(MessageWriter):
    """Makes the events of one message. While the client is slow, the text of the open block piles up."""

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
        super().__init__(request_id, model, begun, meter, stop_string)
        self._settings = settings
        self._frames = MessageFrames(version >= HttpVersion11)
        self.events = EventStream(self._frames)
        self._ready: list[bytes] = []
        self._held: list[str] = []  # text of the open block
        self._prefix = b""  # of its deltas
        self._direct = False  # its text may go straight to the socket: nothing is held

    def text(self, index: int, text: str, tokens: int) -> None:
        """The hot path: one event, one write."""
        if not self.open:
            return
        self.tick(self.choices[index], tokens)
        if not text:
            return
        if self._direct:
            transport = self.events.transport
            if transport.get_write_buffer_size() <= HIGH_WATER:  # type: ignore[union-attr]
                try:
                    transport.write(self._frames.delta(self._prefix, text))  # type: ignore[union-attr]
                except RuntimeError:  # uvloop's, which is closed: the client has left, and the handler will be told
                    self._direct = False
                return
            self._direct = False
        self.add("text", text)
        self.events.push(self)

    def chunk(self, index: int, chunk: Any) -> None:
        """Reasoning, calls, and what a text engine says."""
        super().chunk(index, chunk)
        if self.open and self.pending(self.events.committed):
            self.events.push(self)

    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """A block begins, and the message with the first."""
        self._begin()
        block: dict[str, Any] = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        elif kind == "tool_use":
            block = {"type": kind, "id": call_id, "name": name, "input": {}}
        index = self.blocks - 1
        self._send({"type": "content_block_start", "index": index, "content_block": block})
        delta = _encode({"type": _DELTAS[kind], _FIELDS[kind]: ""}).removesuffix(b'""}')
        self._prefix = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b' % (
            index,
            delta,
        )

    def more(self, text: str) -> None:
        """Text of the open block."""
        self._direct = False
        self._held.append(text)

    def ended(self) -> None:
        """The open block is complete."""
        self._seal()
        self._direct = False
        index = self.blocks - 1
        if self.kind == "thinking":
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            self._send({"type": "content_block_delta", "index": index, "delta": signed})
        self._send({"type": "content_block_stop", "index": index})

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send the events as they are made."""
        return await self.events.serve(self, request, headers, self._settings.keep_alive, IDLE)

    def pending(self, committed: bool) -> bool:
        """Whether there is something to send."""
        return bool(self._ready or self._held)

    def take(self) -> bytes:
        """Everything that is ready, with the text of the open block as one event."""
        self._seal()
        self._direct = self.events.transport is not None and self.kind == "text"
        data = b"".join(self._ready)
        self._ready.clear()
        return data

    def last(self) -> float:
        """When the newest tokens came."""
        return max((choice.last for choice in self.choices), default=0.0)

    def _begin(self) -> None:
        if self.blocks > 1:
            return
        message = MessagesResponse(
            id=self.id, model=self.model, content=[], stop_reason=None, stop_sequence=None, usage=self.message_usage(0)
        )
        self._send({"type": "message_start", "message": message})
        self._send({"type": "ping"})

    def _seal(self) -> None:
        if self._held:
            self._ready.append(self._frames.delta(self._prefix, "".join(self._held)))
            self._held.clear()

    def _send(self, value: Mapping[str, Any]) -> None:
        self._ready.append(self._frames.typed(value))

    def _finished(self, choice: Choice) -> None:
        super()._finished(choice)
        if not self.blocks:
            self._begin()
        reason, sequence = self.stop(choice)
        usage = self.message_usage(self.completion_tokens)
        self._send(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": usage,
            }
        )
        self._send({"type": "message_stop"})
        self.events.push(self)

    def _failed(self, error: RequestError) -> None:
        self._direct = False
        if not self.events.committed:
            self._ready.clear()
            self._held.clear()
            return
        self._seal()
        status = self._settings.overload_status if isinstance(error, Overloaded) else error.status
        self._send(error_value(error, status, self.request_id))
        self.events.push(self)
