"""Reading a request's body, bounded, and the budget for all bodies."""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from dynamod.message.errors import BadRequest, Overloaded, TooLarge
from dynamod.observe.bounded import bounded

from .errors import TooSlow, UnsupportedMedia

SILENT = 60.0
"""Seconds without a byte of the body."""
MIN_RATE = 1000.0
"""Bytes per second that a body comes with at least, on average: slow links are faster."""
GRACE = 60.0
"""Seconds in which the size of a body does not count."""
FREE = 65_536
"""Bytes of a body that count for no budget: small requests are served whatever large ones are on their way."""
ENCODINGS = ("gzip", "deflate", "identity")
"""Encodings of bodies that are read."""
_NOTABLE = 4 * 1024 * 1024
"""Bytes of a body after which memory is given back to the system."""
_LATER = 1.0  # seconds until the body has no holder any more


class BodyClock:
    """When a body has to have come: `SILENT` seconds after its last byte, and `GRACE` seconds plus its size by `rate`.

    `rate`: bytes per second; 0: the size does not count. Context manager; raises TooSlow.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun = asyncio.get_running_loop().time()
        self._timeout = asyncio.timeout(SILENT)
        self._size = 0
        self._slow = False  # the next end is that of the rate

    def came(self, size: int) -> None:
        """`size` bytes have come by now."""
        self._size = size
        silent = asyncio.get_running_loop().time() + SILENT
        late = self._begun + GRACE + size / self._rate if self._rate else silent
        self._slow = late < silent
        self._timeout.reschedule(min(silent, late))

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, value, traceback)
        except TimeoutError:
            text = f"nothing of the body has come for {SILENT:g} s"
            if self._slow:
                late = asyncio.get_running_loop().time() - self._begun
                text = f"{self._size} bytes of the body have come in {late:.0f} s"
                text = f"{text}; it must come with {self._rate:g} bytes per second on average (`body_min_rate`)"
            raise TooSlow(text) from None


class BodyBudget:
    """`limit` bytes for all large bodies in work. `freed` is called some time after a notable one has gone."""

    def __init__(self, limit: int, freed: Callable[[], object] = lambda: None) -> None:
        self.used = 0
        self._limit = limit
        self._freed = freed
        self._timer: asyncio.TimerHandle | None = None
        bounded(self, "request bodies", limit, lambda one: one.used, "bytes")

    def share(self) -> "Share":
        """One request's part, which is given back at the end of its `with`."""
        return Share(self)

    def take(self, size: int) -> None:
        """Count more bytes. Raises Overloaded above the limit."""
        if self.used + size > self._limit:
            text = "other large requests take all memory that this server has for their bodies"
            raise Overloaded(text, code="bodies_limit", retry_after=5)
        self.used += size

    def give(self, size: int) -> None:
        """Count bytes no more."""
        self.used -= size
        if size > _NOTABLE and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATER, self._give_back)

    def _give_back(self) -> None:
        self._timer = None
        self._freed()


class Share:
    """The bytes of one body in a budget."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._size = budget, 0

    def grow(self, size: int) -> None:
        """The body has `size` bytes by now. Raises Overloaded when the budget is spent."""
        if size > FREE:
            self._budget.take(size - self._size)
            self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        if self._size:
            self._budget.give(self._size)


async def read_body(request: web.BaseRequest, limit: int, share: Share | None = None, rate: float = MIN_RATE) -> bytes:
    """The whole body. Raises TooLarge above `limit` bytes (before reading, when the length is announced), TooSlow,
    UnsupportedMedia, and Overloaded when its share of the budget cannot grow.

    `rate`: see `BodyClock`. Compressed bodies are counted as they unpack. A client that leaves cancels this like
    everything else.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ENCODINGS:
        raise unsupported_encoding(encoding)
    announced = request.content_length
    if announced is not None and announced > limit:
        raise _too_large(limit)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    if content.is_eof() and content.total_bytes <= min(limit, FREE) and content.exception() is None:
        return content.read_nowait()  # all of it came with the headers, as most bodies do: nothing to wait for
    try:
        async with BodyClock(rate) as clock:
            first = await content.readany()
            if content.at_eof() and len(first) <= min(limit, FREE):
                return first
            parts, size = [first], len(first)
            while size <= limit:
                if share is not None:
                    share.grow(size)
                clock.came(size)
                part = await content.readany()
                if not part:
                    return b"".join(parts)
                parts.append(part)
                size += len(part)
    except RequestPayloadError as error:
        raise BadRequest("the body is cut short or not encoded as its headers say") from error
    raise _too_large(limit)


def check_json_type(headers: Mapping[str, str]) -> None:
    """Raise UnsupportedMedia for what is not said to be JSON: a page in a browser may send everything else unasked."""
    kind = headers.get("Content-Type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        said = f"not {kind[:100]}" if kind else "but the request does not say what it is"
        raise UnsupportedMedia(f"the body must be JSON, {said}: send the header `Content-Type: application/json`")


def unsupported_encoding(encoding: str) -> UnsupportedMedia:
    """415 that says which encodings of bodies are read."""
    known = ", ".join(ENCODINGS)
    said = f" {encoding[:40]!r}" if encoding else ""
    return UnsupportedMedia(f"the Content-Encoding{said} is not served; served: {known}", accept=known)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit / 1048576:g} MB, the limit of this server")
