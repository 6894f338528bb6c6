"""aiohttp's connections, with our answer to requests that are no HTTP."""

import asyncio
import logging

from aiohttp import web

from dynamod.message.errors import BadRequest

from .errors import Internal, error_response

log = logging.getLogger("dynamod.frontend")


class Connection(web.RequestHandler):
    """One client connection."""

    __slots__ = ()

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
            log.info("request status=%d not HTTP: %s", status, type(exc).__name__)
            response = error_response(BadRequest("this is not a valid HTTP request", code="bad_http"), status)
        response.force_close()
        return response


class HttpServer(web.Server):
    """Makes a `Connection` per client; a handler whose client leaves is cancelled."""

    def __call__(self) -> Connection:
        """Called by the event loop for each new client."""
        return Connection(self, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
