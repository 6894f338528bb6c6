"""A process's way to other nodes: its connection to NATS, made when the daemon says that there are any."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import UserError
from dynamod.message.node import Welcome
from dynamod.post.base import Receive

if TYPE_CHECKING:
    from dynamod.post.nats_connection import NatsConnection
    from dynamod.post.nats_impl import NatsOffice, NatsPost

log = logging.getLogger("dynamod.daemon")

READY = 2.0
"""Seconds that a worker waits for NATS before it is announced without: it can be reached as soon as NATS is there."""


class Remote:
    """Nothing until `welcome` names a NATS server. `post` is for what we ask, `offices` for what we serve."""

    def __init__(self, name: str, receive: Receive, spawn: Callable[[Coroutine[Any, Any, None], str], Any]) -> None:
        self._name, self._receive, self._spawn = name, receive, spawn
        self.connection: NatsConnection | None = None
        self.post: NatsPost | None = None
        self.offices: dict[str, NatsOffice] = {}

    def welcome(self, message: Welcome) -> None:
        """The daemon has said where other nodes are reached; a later daemon's word changes nothing any more."""
        if self.connection is not None or not message.cluster:
            return
        from dynamod.post.nats_connection import NatsConnection
        from dynamod.post.nats_impl import NatsPost
        from dynamod.post.nats_settings import NatsSettings

        try:
            settings = NatsSettings.from_environment(message.cluster)
            if settings is None:
                return
            connection = NatsConnection(settings, self._spawn, self._name)
            connection.start()
        except UserError as error:
            log.error("other nodes cannot be reached: %s", error.line())
            return
        self.connection, self.post = connection, NatsPost(connection)

    async def serve(self, subject: str) -> str:
        """Take requests at a subject; returns it, or nothing when this node is alone."""
        if self.connection is None:
            return ""
        if subject not in self.offices:
            from dynamod.post.nats_impl import NatsOffice

            office = self.offices[subject] = NatsOffice(self.connection, subject, self._receive)
            try:
                async with asyncio.timeout(READY):
                    await office.start()
            except TimeoutError:
                log.warning("NATS is slow to take the subscription to %s", subject)
            if not await self.connection.ready(READY):
                log.warning("NATS does not answer yet; other nodes reach this worker when it does")
        return subject

    async def close(self) -> None:
        """End the mail from and to other nodes."""
        if self.post is not None:
            await self.post.close()
        for office in self.offices.values():
            await office.close()
        if self.connection is not None:
            await self.connection.close()
