"""The port of a daemon at which Prometheus reads the metrics of all processes of the node."""

import asyncio
import importlib
import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dynamod.actor import Reason
from dynamod.daemon.parts import DaemonPart
from dynamod.transport.importing import IMPORTING

from .settings import OFF, PORT, settings

if TYPE_CHECKING:
    from aiohttp import web

    from dynamod.daemon.node import Node

log = logging.getLogger("dynamod.daemon")

RETRY_S = 5.0
"""Seconds between attempts to listen at a port that another program has."""


class ExporterPart(DaemonPart):
    """`url`: where the metrics are served; empty while they are not."""

    def __init__(self, node: "Node") -> None:
        super().__init__(node)
        self.settings = settings(os.environ)
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def started(self) -> None:
        """Begin to listen, where a port is set. The daemon does not wait for that."""
        if self.settings.port != OFF:
            self.context.task(self._serve(), "serve")

    async def stopping(self, reason: Reason) -> None:
        """End open answers and close the port."""
        self.url = ""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self) -> None:
        serving = await asyncio.to_thread(_serving)  # aiohttp takes a third of a second to import
        self._runner = runner = await serving.runner(self.node)
        host, port = self.settings
        told = False
        while not self.url:
            try:
                self.url = await serving.listen(runner, host, port)
            except OSError as error:
                if not told:
                    why = error.strerror or str(error)
                    log.error("%s: no metrics at %s port %d: %s; choose another port, or -1", PORT, host, port, why)
                told = True
                await asyncio.sleep(RETRY_S)
        log.info("metrics of all processes at %s/metrics", self.url)

    def inspection(self) -> dict[str, Any]:
        """Where the metrics are served."""
        return {"url": self.url}


def _serving() -> ModuleType:
    with IMPORTING:
        return importlib.import_module(f"{__package__}.serving")
