"""Reading a request's body, bounded."""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from dynamod.message.errors import BadRequest, TooLarge

from .errors import TooSlow

SILENT = 60.0
"""Seconds without a byte of the body."""


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The whole body. Raises TooLarge above `limit` bytes (before reading, when the length is announced), TooSlow.

    Compressed bodies are counted as they unpack. A client that leaves cancels this like everything else.
    """
    announced = request.content_length
    if announced is not None and announced > limit:
        raise _too_large(limit)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    try:
        async with asyncio.timeout(SILENT) as clock:
            first = await content.readany()
            if content.at_eof() and len(first) <= limit:
                return first
            parts, size = [first], len(first)
            while size <= limit:
                clock.reschedule(asyncio.get_running_loop().time() + SILENT)
                part = await content.readany()
                if not part:
                    return b"".join(parts)
                parts.append(part)
                size += len(part)
    except RequestPayloadError as error:
        raise BadRequest("the body is cut short or not encoded as its headers say") from error
    except TimeoutError:
        raise TooSlow(f"nothing of the body has come for {SILENT:g} s") from None
    raise _too_large(limit)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit / 1048576:g} MB, the limit of this server")
