"""A process's way to other nodes: its connection to NATS, made when the daemon says that there are any."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import UserError
from dynamod.message.node import Welcome
from dynamod.transport.base import Receive

if TYPE_CHECKING:
    from dynamod.transport.nats.connection import NatsConnection
    from dynamod.transport.nats.transport import NatsServer, NatsTransport

log = logging.getLogger("dynamod.daemon")

READY = 2.0
"""Seconds that a worker waits for NATS before it is announced without: it can be reached as soon as NATS is there."""


class Remote:
    """Nothing until `welcome` names a NATS server. `post` is for what we ask, `offices` for what we serve."""

    def __init__(self, name: str, receive: Receive, spawn: Callable[[Coroutine[Any, Any, None], str], Any]) -> None:
        self._name, self._receive, self._spawn = name, receive, spawn
        self.connection: NatsConnection | None = None
        self.transport: NatsTransport | None = None
        self.workers: dict[str, NatsServer] = {}

    def welcome(self, message: Welcome) -> None:
        """The daemon has said where other nodes are reached; a later daemon's word changes nothing any more."""
        if self.connection is not None or not message.cluster:
            return
        from dynamod.transport.nats.connection import NatsConnection
        from dynamod.transport.nats.settings import NatsSettings
        from dynamod.transport.nats.transport import NatsTransport

        try:
            settings = NatsSettings.from_environment(message.cluster)
            if settings is None:
                return
            connection = NatsConnection(settings, self._spawn, self._name)
            connection.start()
        except UserError as error:
            log.error("other nodes cannot be reached: %s", error.line())
            return
        self.connection, self.transport = connection, NatsTransport(connection)

    async def serve(self, subject: str) -> str:
        """Take requests at a subject; returns it, or nothing when this node is alone."""
        if self.connection is None:
            return ""
        if subject not in self.workers:
            from dynamod.transport.nats.transport import NatsServer

            server = self.workers[subject] = NatsServer(self.connection, subject, self._receive)
            try:
                async with asyncio.timeout(READY):
                    await server.start()
            except TimeoutError:
                log.warning("NATS is slow to take the subscription to %s", subject)
            if not await self.connection.ready(READY):
                log.warning("NATS does not answer yet; other nodes reach this worker when it does")
        return subject

    async def close(self) -> None:
        """Close the connections to other nodes."""
        if self.transport is not None:
            await self.transport.close()
        for server in self.workers.values():
            await server.close()
        if self.connection is not None:
            await self.connection.close()
