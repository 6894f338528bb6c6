"""Rows as messages of NATS, one each. A stream of JetStream with the subject keeps them."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dynamod.transport.nats.client import library, new_client, options, plain
from dynamod.transport.nats.settings import NatsSettings

if TYPE_CHECKING:
    from nats.aio.client import Client

SEND_S = 2.0
"""Seconds for one batch, with the time to connect."""
FRESH_S = 30.0
"""Seconds for which a connection is used again: between batches the server's signs of life get no answer."""
CLOSE_S = 0.5
"""Seconds for the end of a connection."""
DEFAULT = "nats://localhost:4222"


def nats_settings() -> NatsSettings:
    """Where NATS is, as the variables say that NVIDIA Dynamo reads. Raises UserError."""
    return NatsSettings.from_environment() or NatsSettings(servers=(DEFAULT,))


class NatsRows:
    """A `observe.line_writer.LineFile` whose lines go to a subject. Used by one thread at a time."""

    def __init__(self, settings: NatsSettings, subject: str) -> None:
        self.failure = ""
        self._settings, self._subject = settings, subject
        self._runner: asyncio.Runner | None = None
        self._client: Client | None = None
        self._used = 0.0

    @property
    def path(self) -> Path:
        """For the log."""
        return Path(f"{self._settings.servers[0]} {self._subject}")

    def append(self, lines: Sequence[bytes]) -> int:
        """Publish rows. Returns how many the server has."""
        if self._runner is None:
            library()
            self._runner = asyncio.Runner()
        self.failure = ""
        return self._runner.run(self._publish(lines))

    def close(self) -> None:
        """End the connection. Called in the thread of an event loop, in which no other loop can run."""
        runner, self._runner = self._runner, None
        if runner is not None:
            thread = threading.Thread(target=self._end, args=(runner,), name="end of NATS", daemon=True)
            thread.start()
            thread.join(CLOSE_S)

    def _end(self, runner: asyncio.Runner) -> None:
        runner.run(self._leave())
        runner.close()

    async def _publish(self, lines: Sequence[bytes]) -> int:
        done = 0
        try:
            async with asyncio.timeout(SEND_S):
                client = await self._connected()
                for line in lines:
                    if len(line) - 1 > client.max_payload:
                        self.failure = f"a row has more than the {client.max_payload} bytes that the server takes"
                        continue
                    await client.publish(self._subject, line[:-1])
                    done += 1
                await client.flush(timeout=max(1, int(SEND_S)))  # the server has all of them
        except Exception as error:  # whatever the library raises, the rows count as dropped
            self.failure = plain(error)
            await self._leave()
            return 0
        self._used = asyncio.get_running_loop().time()
        return done

    async def _connected(self) -> "Client":
        now, client = asyncio.get_running_loop().time(), self._client
        if client is not None and client.is_connected and now - self._used < FRESH_S:
            return client
        await self._leave()
        client = new_client()
        found = options(self._settings, client, "dynamod request trace", self._settings.servers)
        await client.connect(**{**found, "allow_reconnect": False, "max_reconnect_attempts": 1})
        self._client = client
        return client

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SEND_S):
                    await client.close()
