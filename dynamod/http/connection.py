"""aiohttp's connections, with a time limit for clients that do not read and OpenAI's form for what is no HTTP."""

import array
import asyncio
import fcntl
import logging
import resource
import sys
import termios
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong

from dynamod.message.errors import BadRequest, Internal, RequestError
from dynamod.message.shares import Shares
from dynamod.observe.bounded import bounded

from .body import unsupported_encoding
from .context import Arrivals, common_headers, request_id
from .errors import HeaderTooLarge, UrlTooLong, error_response
from .outlet import Outlet, Outlets

log = logging.getLogger("dynamod.frontend")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


HEADER = 30.0
"""Seconds from a new connection to the end of its first request's header."""
IDLE = 75.0
"""Seconds between the requests of a connection."""
URL = 8190
"""Bytes of a request line."""
FIELD = 32_768
"""Bytes of one header field; large tokens for authorization fit."""
RESERVE = 64
"""Descriptors that clients do not get: workers must be reached, and files read, at any number of connections."""


class Connection(Arrivals):
    """One client connection. A client that reads nothing for `timeout` seconds is disconnected (0: never).

    `refused`: there are too many connections; this one is closed at once. `outlets`: of the server.
    """

    __slots__ = ("_clock", "_header", "_outlet", "_outlets", "_refused", "_timeout", "_unread", "is_new")

    def __init__(self, *arguments: Any, timeout: float, refused: bool, outlets: Outlets, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._outlets = outlets
        self._outlet: Outlet | None = None  # of the last stream
        self.is_new = True  # no request has come yet
        self._refused = refused
        self._header: asyncio.TimerHandle | None = None
        self._timeout = timeout
        self._clock: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes that waited when the clock was set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come (called by the event loop)."""
        super().connection_made(transport)
        if self._refused:
            cast("asyncio.Transport", transport).abort()
        else:
            self._header = asyncio.get_running_loop().call_later(HEADER, self._silent)

    def open_stream(self, transport: asyncio.WriteTransport | None) -> Outlet | None:
        """What the stream of a response writes to; None: the client has left.

        `transport`: that of the request, which may be one around ours that wants to see all bytes.
        """
        own = transport is self.transport
        self._outlet = None if transport is None else Outlet(transport, self._outlets, direct=own)
        return self._outlet

    def _silent(self) -> None:
        if self.is_new and self.transport is not None:
            log.info("a client has sent no request for %g s: disconnected", HEADER)
            self.transport.abort()

    def pause_writing(self) -> None:
        """The socket is full (called by the transport)."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client has taken some (called by the transport)."""
        self._unwatch()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has left (called by the transport)."""
        self._unwatch()
        if self._outlet is not None:
            self._outlet.lost()
        if self._header is not None:
            self._header.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        transport = self.transport
        if self._timeout and transport is not None:
            self._unread = _waiting(transport)
            self._clock = asyncio.get_running_loop().call_later(self._timeout, self._stalled)

    def _unwatch(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _stalled(self) -> None:
        self._clock = None
        transport = self.transport
        if transport is None:
            return
        if _waiting(transport) < self._unread:
            self._watch()
            return
        log.info("a client has read nothing for %g s, while %d bytes wait: disconnected", self._timeout, self._unread)
        transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never reached a handler in OpenAI's form, without a traceback in the log."""
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionError("the client left, or has part of an answer already")
        if status >= 500:
            log.error("request failed below the handler", exc_info=exc)
            response = error_response(Internal("internal error"), 500)
        else:
            error = _refusal(exc)
            log.info("request status=%d not HTTP: %s", error.status, type(exc).__name__)
            response = error_response(error, error.status)
        response.headers.update(common_headers(request_id(None)))
        response.force_close()
        return response


def _refusal(error: BaseException | None) -> RequestError:
    """What aiohttp could not parse, in HTTP's words."""
    if isinstance(error, ContentEncodingError):
        return unsupported_encoding("")
    if isinstance(error, LineTooLong):
        return UrlTooLong() if error.args[1] == URL else HeaderTooLarge()
    if "Too many headers" in str(error):
        return HeaderTooLarge()
    return BadRequest("this is not a valid HTTP request", code="bad_http")


def _waiting(transport: asyncio.BaseTransport) -> int:
    """Bytes that the client has not taken: ours, and those in the kernel's hands, which may be megabytes."""
    ours = int(cast("asyncio.WriteTransport", transport).get_write_buffer_size())
    sock = transport.get_extra_info("socket")
    if sock is None or not sys.platform.startswith("linux"):
        return ours
    queued = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, queued)
    except OSError:
        return ours
    return ours + queued[0]


class HttpServer(web.Server):
    """Makes a `Connection` per client; a handler whose client leaves is cancelled.

    Clients that leave are counted in `shares`. `outlets`: of the streams.
    """

    def __init__(self, handler: Handler, client_timeout: float, outlets: Outlets, shares: Shares | None = None) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._outlets = outlets
        self._shares = shares
        self._client_timeout = client_timeout
        self._most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVE, 16)
        self._full = False
        bounded(self, "HTTP connections", self._most, lambda one: len(one.connections), "connections")

    def waits(self) -> bool:
        """Whether a connection has not sent its first request."""
        return any(cast("Connection", one).is_new for one in self.connections)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """A client has left (called by its connection)."""
        if self._shares is not None:
            self._shares.closed()
        super().connection_lost(handler, exc)

    def __call__(self) -> Connection:
        """Called by the event loop for each new client."""
        before, self._full = self._full, len(self.connections) >= self._most
        if self._full and not before:
            log.warning("%d clients are connected: no more until some leave, see ulimit -n", self._most)
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            timeout=self._client_timeout,
            refused=self._full,
            outlets=self._outlets,
            keepalive_timeout=IDLE,
            max_line_size=URL,
            max_field_size=FIELD,
        )
