"""The HTTP routes of a node: `/metrics`, `/live`, `/health`."""

from typing import TYPE_CHECKING

from aiohttp import web

from dynamod.control.context import CommandContext
from dynamod.control.reading import node_families
from dynamod.http.settings import metrics_prefix
from dynamod.observe.metrics import CONTENT_TYPE, exposition

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
    app.router.add_get("/live", routes.live)
    app.router.add_get("/health", routes.health)
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

    async def metrics(self, _request: web.Request) -> web.Response:
        """The metrics of all processes, as `/v1/metrics` of the control socket has them, and their other names."""
        families = await node_families(self._context)
        text = exposition(with_aliases(families, metrics_prefix()))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def live(self, _request: web.Request) -> web.Response:
        """200 while the daemon answers."""
        return web.json_response({"status": "live"})

    async def health(self, _request: web.Request) -> web.Response:
        """200 when all graphs of the node are ready; 503 before, when one is not, and when the daemon ends."""
        graphs = dict[str, bool]()
        for row in self._node.graphs.rows():
            graphs[row.graph] = graphs.get(row.graph, True) and row.state == "Ready"
        ready = bool(graphs) and all(graphs.values()) and not self._node.life.stopped.is_set()
        body = {"status": "ready" if ready else "notready", "graphs": graphs}
        return web.json_response(body, status=200 if ready else 503)
