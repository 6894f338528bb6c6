"""Answers in one piece: JSON, which goes out with its header in one write."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

_date = (0, "")  # the second, and its text


class WholeAnswer(web.Response):
    """A response whose body is bytes: where nothing is special, it writes what aiohttp would, in fewer steps."""

    _sent = False

    @property
    def prepared(self) -> bool:
        """Whether it is out, or on its way."""
        return self._sent or super().prepared

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open after it; None: that is not known yet."""
        return self._sent or super().keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it."""
        transport = request.transport
        lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
        if (
            transport is None
            or transport.is_closing()
            or self.prepared
            or super().keep_alive is False  # by force_close
            or not request.keep_alive
            or request.version != HttpVersion11
            or request.method == "HEAD"
            or not isinstance(self.body, bytes)
            or not self.body
            or lines.count("\n") != len(self.headers)  # aiohttp refuses a line break in a value
        ):
            return await super().prepare(request)
        head = (
            f"HTTP/1.1 {self.status} {self.reason}\r\n{lines}Content-Length: {len(self.body)}\r\nDate: {_now()}\r\n\r\n"
        )
        transport.write(head.encode() + self.body)
        self._sent = True
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to send when `prepare` has sent all."""
        if not self._sent:
            await super().write_eof(data)


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
