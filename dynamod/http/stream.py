"""A streamed response: server-sent events are written where they are made.

The handler sleeps until there is more to decide. With HTTP/1.1 a frame carries its own chunked framing, so that one
write sends it.
"""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, cast

from aiohttp import HttpVersion11, web

from dynamod.message.errors import RequestError
from dynamod.message.hints import printable

from .answer import LAST_CHUNK, StreamedAnswer
from .outlet import Outlet

if TYPE_CHECKING:
    from .connection import Connection

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventFrames:
    """Makes the frames of one response. `chunked`: with the chunked framing of HTTP/1.1."""

    def __init__(self, chunked: bool) -> None:
        self._chunked = chunked

    def data(self, payload: bytes) -> bytes:
        """A message; the payload has no line break."""
        return self.frame(b"data: %b\n\n" % payload)

    def event(self, name: str, payload: bytes) -> bytes:
        """A message of another type than the usual one."""
        return self.frame(b"event: %b\ndata: %b\n\n" % (one_line(name), payload))

    def comment(self, text: str) -> bytes:
        """A line that clients ignore."""
        return self.frame(b": %b\n\n" % one_line(text))

    def frame(self, payload: bytes) -> bytes:
        """Payload with chunked framing where the connection needs it."""
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload


def one_line(text: str) -> bytes:
    """Text that cannot end a field of an event."""
    return " ".join(printable(text).splitlines()).encode()


class Source(Protocol):
    """Makes the events of one response."""

    open: bool
    error: RequestError | None
    changed: asyncio.Event  # set when there is more, or the end

    def pending(self, committed: bool) -> bool:
        """Whether there is something to send. `committed`: the response has its status, so anything may go."""

    def take(self) -> bytes:
        """The frames of everything that is there."""

    def begins(self) -> None:
        """The first bytes have gone out."""

    def last(self) -> float:
        """When the newest event was made, on the clock of `perf_counter`; 0: there is none."""


class EventStream:
    """Writes the events of a source straight to the client. `outlet`: what takes them, once a response has begun.

    Nothing is sent before the source has something to send, so an earlier failure keeps its HTTP status. While the
    client is slow, events stay in the source, which may merge them: memory is bounded by the response itself.
    """

    def __init__(self, frames: EventFrames) -> None:
        self.outlet: Outlet | None = None
        self.committed = False
        self._frames = frames

    def push(self, source: Source) -> None:
        """Send the bytes that wait, or let the handler do it when the socket can take them."""
        if self.outlet is not None and self.outlet.ready():
            self._flush(source)
        else:
            source.changed.set()

    async def serve(
        self,
        source: Source,
        request: web.BaseRequest,
        headers: Mapping[str, str],
        keep_alive: float,
        idle: float = 0.0,
    ) -> web.StreamResponse:
        """Respond to the request. Raises the RequestError that ended the source while no byte had been sent.

        `keep_alive`: seconds of silence after which a comment is sent; 0: never. `idle`: the same where something has
        been sent, if `keep_alive` is 0. Cancelling this (the client left) leaves nothing open.
        """
        comment = await self._more(source, keep_alive)
        if source.error is not None:
            raise source.error
        self.committed = True
        response = StreamedAnswer(headers={**_HEADERS, **headers})
        if request.version < HttpVersion11:
            response.force_close()  # nothing else says where it ends
        head = response.begin(request)
        end = LAST_CHUNK if head else b""
        if not head:
            await response.prepare(request)
        self.outlet = cast("Connection", request.protocol).open_stream(request.transport)
        keep_alive, begun = keep_alive or idle, False
        while source.open:
            self._flush(source, head, comment)
            if not begun:
                begun = True
                source.begins()
            head = b""
            comment = await self._more(source, keep_alive)
            await request.writer.drain()
        self._flush(source, head, comment + end)
        if self.outlet is not None:
            self.outlet.flush()  # what follows does not pass through it
        await response.write_eof()
        return response

    def _flush(self, source: Source, head: bytes = b"", tail: bytes = b"") -> None:
        data = head + source.take() + tail
        if data and self.outlet is not None:
            self.outlet.put(data)

    async def _more(self, source: Source, keep_alive: float) -> bytes:
        """Wait for something to send or for the end; a silent interval gives a comment."""
        while source.open and not source.pending(self.committed):
            source.changed.clear()
            if not keep_alive:
                await source.changed.wait()
                continue
            try:
                async with asyncio.timeout(keep_alive):
                    await source.changed.wait()
            except TimeoutError:
                if perf_counter() - source.last() >= keep_alive:
                    return self._frames.comment("keep-alive")
        return b""
