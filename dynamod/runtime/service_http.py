"""HTTP endpoints of a user's service (`@api`): one route per endpoint, strings stream as they are yielded."""

import json
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from dynamod.engine.python.plain import plain
from dynamod.graph.endpoint import EndpointSpec
from dynamod.http.errors import error_response
from dynamod.message.errors import BadRequest, Internal, RequestError

from .context import ComponentContext

log = logging.getLogger("dynamod.service")


class ServiceHttp:
    """Listens on the sockets that the daemon bound for this service."""

    def __init__(self, instance: Any, endpoints: Sequence[EndpointSpec], ctx: ComponentContext) -> None:
        self._instance, self._ctx = instance, ctx
        app = web.Application()
        for endpoint in endpoints:
            app.router.add_route(endpoint.http_method or "POST", f"/{endpoint.name}", self._handler(endpoint))
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Serve."""
        await self._runner.setup()
        for sock in self._ctx.listeners():
            await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        """Close the listening sockets and the connections."""
        await self._runner.cleanup()

    def _handler(self, endpoint: EndpointSpec) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            response: web.StreamResponse | None = None
            try:
                payload = dict(request.query) or None if request.method == "GET" else await _payload(request)
                async with aclosing(endpoint.stream(self._instance, payload)) as items:
                    async for item in items:
                        if response is None:
                            response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
                            await response.prepare(request)
                        await response.write(_text(item).encode())
            except RequestError as error:
                if response is None:
                    return error_response(error, error.status)
                raise
            except Exception:
                if response is not None:
                    raise  # too late for an answer: the connection is cut, and aiohttp logs why
                log.exception("%s failed", endpoint.name)
                return error_response(Internal("internal error; the service's log has the traceback"), 500)
            if response is None:
                return web.Response(status=204)
            await response.write_eof()
            return response

        return handle


async def _payload(request: web.Request) -> Any:
    """What the body holds: JSON, or the text itself where it says that it is text. Raises BadRequest."""
    try:
        body = await request.text()
        return json.loads(body) if body else None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is no text: {error.reason}") from None
    except ValueError as error:
        if request.content_type.startswith("text/"):
            return body
        raise BadRequest(f"the body is not valid JSON: {error}") from None


def _text(item: Any) -> str:
    return item if isinstance(item, str) else json.dumps(plain(item))
