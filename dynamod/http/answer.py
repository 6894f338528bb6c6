"""Answers that are written in fewer steps than by aiohttp: JSON in one piece, and the headers of streams.

Where anything is special, aiohttp writes the answer: HTTP/1.0, HEAD, a connection that closes, a client that has left.
"""

import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

_date = (0, "")  # the second, and its text

LAST_CHUNK = b"0\r\n\r\n"
"""Ends a body with chunked framing."""


class _Written(web.StreamResponse):
    """A response that may be written past aiohttp: `_sent` once its header is out, or on its way."""

    _sent = False

    @property
    def prepared(self) -> bool:
        """Whether its header is out, or on its way."""
        return self._sent or super().prepared

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open after it; None: that is not known yet."""
        return self._sent or super().keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the header, unless it is out. aiohttp calls this for each response that a handler returns."""
        return None if self._sent else await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """End the body, unless the code that wrote the header ends it."""
        if not self._sent:
            await super().write_eof(data)


class WholeAnswer(_Written, web.Response):
    """A response whose body is bytes, and goes out with its header in one write."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it."""
        if self._sent:
            return None
        body, transport = self.body, request.transport
        if transport is not None and isinstance(body, bytes) and body and not self.prepared:
            head = header(request, self, f"Content-Length: {len(body)}")
            if head:
                self._sent = True
                transport.write(head + body)
                return None
        return await super().prepare(request)


class StreamedAnswer(_Written):
    """A response with chunked framing, which its owner writes: header, chunks and LAST_CHUNK."""

    def begin(self, request: web.BaseRequest) -> bytes:
        """The header, which the caller writes with the first chunks; empty: aiohttp has to write it, by `prepare`."""
        head = header(request, self, "Transfer-Encoding: chunked")
        self._sent = bool(head)
        return head


def header(request: web.BaseRequest, response: web.StreamResponse, framing: str) -> bytes:
    """The header of a response to an ordinary request, which counts as written. Empty: something is special.

    `framing`: the line that says where the body ends.
    """
    transport, headers = request.transport, response.headers
    if (
        transport is None
        or transport.is_closing()
        or response.keep_alive is not None  # by force_close
        or not request.keep_alive
        or request.version != HttpVersion11
        or request.method == "HEAD"
    ):
        return b""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        return b""  # aiohttp refuses a line break in a value
    head = f"HTTP/1.1 {response.status} {response.reason}\r\n{lines}{framing}\r\nDate: {_now()}\r\n\r\n".encode()
    request.writer.output_size += len(head)
    return head


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Any JSON-like value as an answer."""
    body = msgspec.json.encode(value)
    return WholeAnswer(body=body, status=status, headers=headers, content_type="application/json")


def _now() -> str:
    """The time as HTTP writes it."""
    global _date
    second = int(time.time())
    if second != _date[0]:
        _date = second, formatdate(second, usegmt=True)
    return _date[1]
