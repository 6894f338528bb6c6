"""The HTTP routes of a node: metrics and health."""

from typing import TYPE_CHECKING, Any

from aiohttp import web

from dynamod.control.context import CommandContext
from dynamod.control.reading import node_families
from dynamod.http.settings import metrics_prefix
from dynamod.observe.metrics import openmetrics, rendered

from .health import not_live, not_ready, progress
from .names import with_aliases

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

CLOSE_S = 0.5
"""Seconds that open answers get when the daemon ends."""


async def runner(node: "Node") -> web.AppRunner:
    """The server of a node, which listens nowhere yet."""
    routes = _Routes(node)
    app = web.Application()
    app.router.add_get("/metrics", routes.metrics)
    for path in ("/live", "/health/live"):
        app.router.add_get(path, routes.live)
    for path in ("/health", "/health/ready"):
        app.router.add_get(path, routes.ready)
    app.router.add_get("/health/progress", routes.progress)
    made = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_S)
    await made.setup()
    return made


async def listen(made: web.AppRunner, host: str, port: int) -> str:
    """Listen; the URL. Raises OSError."""
    site = web.TCPSite(made, host, port)
    await site.start()
    address = made.addresses[-1]
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{shown}:{address[1]}"


class _Routes:
    """What answers the routes."""

    def __init__(self, node: "Node") -> None:
        self._node, self._context = node, CommandContext(node)

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics of all processes, as `/v1/metrics` of the control socket has them, and their other names."""
        accept = request.headers.get("Accept", "")
        families = await node_families(self._context, "openmetrics" if openmetrics(accept) else "metrics")
        body, kind = rendered(with_aliases(families, metrics_prefix()), accept)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def live(self, _request: web.Request) -> web.Response:
        """503 when all processes of the node have failed for good or are silent."""
        return _answer(not_live(self._node.graphs.rows()))

    async def ready(self, _request: web.Request) -> web.Response:
        """503 while a component has no ready process, and when the daemon ends."""
        ends = self._node.life.stopped.is_set()
        return _answer("the daemon ends" if ends else not_ready(self._node.graphs.rows()))

    async def progress(self, _request: web.Request) -> web.Response:
        """As `live`, with the last progress of each process."""
        rows = self._node.graphs.rows()
        return _answer(not_live(rows), processes=progress(rows))


def _answer(why: str, **more: Any) -> web.Response:
    body = {"status": "unhealthy", "message": why} if why else {"status": "healthy"}
    return web.json_response({**body, **more}, status=503 if why else 200)
