"""Asks the daemon over its control socket, without waiting in the event loop."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec

from dynamod.extension.command import READING, REMAINDER
from dynamod.message.control import patience
from dynamod.message.errors import RequestError

SILENT_S = 10.0
"""Seconds without an event after which a stream counts as broken."""
CONNECT_S = 3.0
"""Seconds until the daemon has taken a connection."""
LONGEST = 16 * 1024 * 1024
"""Bytes of one event: the look at a fleet of 1,000 processes has about 2 MB."""


class DaemonError(RequestError):
    """503: the daemon does not answer, or has failed."""

    status = 503
    kind = "server_error"
    code_default = "daemon"


class DaemonRefuses(DaemonError):
    """400: the daemon has refused a command."""

    status = 400
    kind = "invalid_request_error"


class DaemonForbids(DaemonRefuses):
    """403: the user of this process may not change anything."""

    status = 403


class DaemonKnowsNot(DaemonRefuses):
    """404: there is no such component or request."""

    status = 404


class DaemonKeeps(DaemonRefuses):
    """409: the change would take a model's last worker away."""

    status = 409


REFUSALS: dict[int, type[DaemonError]] = {
    one.status: one for one in (DaemonRefuses, DaemonForbids, DaemonKnowsNot, DaemonKeeps)
}


class Daemon:
    """The daemon at a control socket. All methods raise DaemonError."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def read(self, path: str, query: Mapping[str, str] = {}) -> Any:
        """The answer to `GET /v1/PATH`."""
        async with self._request("GET", path, READING, params=dict(query)) as response:
            return await response.json(loads=msgspec.json.decode)

    async def change(self, path: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to `POST /v1/PATH`. Waits as long as open streams may finish."""
        seconds = patience(arguments.get("timeout")) + REMAINDER
        async with self._request("POST", path, seconds, json=dict(arguments)) as response:
            return await response.json(loads=msgspec.json.decode)

    async def events(self, path: str, every: float, query: Mapping[str, str] = {}) -> AsyncIterator[bytes]:
        """The answers to `GET /v1/PATH`, as JSON, until the daemon ends the stream."""
        async with self._request("GET", path, None, params={**query, "follow": f"{every:g}"}) as response:
            async for line in self._lines(response, SILENT_S):
                if line.startswith(b"event: error"):
                    raise DaemonError("the daemon has ended its answers")
                if line.startswith(b"data: "):
                    yield line[len(b"data: ") :]

    async def log_lines(self, component: str, lines: int) -> AsyncIterator[bytes]:
        """Log lines as they come."""
        asked = {"follow": "1", "lines": str(lines), "component": component}
        async with self._request("GET", "logs", None, params=asked) as response:
            async for line in self._lines(response, None):
                yield line.rstrip(b"\n")

    @staticmethod
    async def _lines(response: aiohttp.ClientResponse, silent: float | None) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(silent):
                line = await response.content.readuntil(b"\n")
            if not line:
                return
            yield line

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, seconds: float | None, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(self._path), timeout=timeout, read_bufsize=LONGEST
                ) as session,
                session.request(method, f"http://localhost/v1/{path}", **options) as response,
            ):
                if response.status >= 400:
                    raise _refused(response.status, await response.read())
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise DaemonError(f"the daemon does not answer: {error or type(error).__name__}") from None


def _refused(status: int, body: bytes) -> DaemonError:
    kind = REFUSALS.get(status, DaemonError)
    try:
        error = json.loads(body)["error"]
        hint = f"; {error['hint']}" if error.get("hint") else ""
        return kind(f"{error['message']}{hint}", code=str(error.get("code") or "daemon"))
    except (ValueError, KeyError, TypeError):
        return kind(f"the daemon answered {status}: {body[:200]!r}")
