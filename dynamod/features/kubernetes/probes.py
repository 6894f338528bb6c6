"""HTTP probes of a daemon, at DYNAMOD_PROBES: for the kubelet, and for scrapes of pods that serve no clients."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from dynamod.control.commands import Commands
from dynamod.message.errors import UserError
from dynamod.message.rows import Row

from .place import VARIABLE

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

ANSWER = 10.0
"""Seconds for a scrape."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def not_live(rows: Iterable[Row]) -> str:
    """Why the pod should be started again; empty: it should not. One of several processes that failed does not count.

    The daemon starts processes again. A pod is not live when all of its processes have failed for good or are silent.
    """
    every = list(rows)
    bad = [f"{row.process} is {row.state}" for row in every if row.state in ("Fatal", "Silent")]
    return "; ".join(bad) if bad and len(bad) == len(every) else ""


def not_ready(rows: Iterable[Row]) -> str:
    """Why the pod should get no requests; empty: it is ready."""
    every = list(rows)
    if not every:
        return "no component runs"
    if any(row.state == "Ready" for row in every):
        waiting = {row.component for row in every} - {row.component for row in every if row.state == "Ready"}
        return f"{', '.join(sorted(waiting))}: not ready" if waiting else ""
    return "; ".join(f"{row.process} is {row.state}" for row in every)


class Probes:
    """`/health/live`, `/health/ready`, `/health/progress`, `/metrics` of this daemon. `port`: at which they are."""

    def __init__(self, node: "Node", host: str, port: int) -> None:
        self._node, self._host, self.port = node, host, port
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises UserError when the port is taken."""
        app = web.Application()
        for path, handler in {
            "/health/live": self._answer(not_live),
            "/health/ready": self._answer(not_ready, leaves=True),
            "/health/progress": self._progress,
            "/metrics": self._metrics,
        }.items():
            app.router.add_get(path, handler)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        host, port = self._host, self.port
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            raise UserError(f"{VARIABLE}: {host}:{port}: {error.strerror}", "choose another port") from None
        self.port = sock.getsockname()[1]
        await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _answer(self, why: Callable[[Iterable[Row]], str], *, leaves: bool = False) -> Any:
        async def handle(_request: web.Request) -> web.Response:
            lacks = why(self._node.graphs.rows())
            if leaves and self._node.life.stopped.is_set():
                lacks = "the daemon ends"
            body = {"status": "unhealthy", "message": lacks} if lacks else {"status": "healthy"}
            return web.json_response(body, status=503 if lacks else 200)

        return handle

    async def _progress(self, _request: web.Request) -> web.Response:
        rows = self._node.graphs.rows()
        workers = [
            {
                "process": row.process,
                "state": row.state,
                "slow": row.slow,
                "doing": row.doing,
                "progress_age_s": row.progress_age,
                "running": row.running,
                "waiting": row.waiting,
            }
            for row in rows
        ]
        lacks = not_live(rows)
        body = {"status": "unhealthy" if lacks else "healthy", "processes": msgspec.to_builtins(workers)}
        return web.json_response(body, status=503 if lacks else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(ANSWER):
                text = await Commands(self._node, self._node.parts.around).call("metrics", {})
        except TimeoutError:
            return web.Response(status=503, text="the processes do not answer\n")
        return web.Response(body=str(text).encode(), headers={"Content-Type": METRICS_TYPE})
