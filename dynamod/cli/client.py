"""The command line's side of the control socket: one request per verb, by the standard library alone."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dynamod.message.control import patience
from dynamod.message.errors import UserError
from dynamod.runtime.paths import socket_candidates

TIMEOUT = 5.0


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("dynamod", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Control:
    """A running daemon. Tries every usual place of the socket; `explicit` or DYNAMOD_SOCKET names it."""

    def __init__(self, explicit: str | None = None) -> None:
        self._explicit = explicit

    def get(self, path: str, **query: Any) -> Any:
        """Read something. Raises UserError with the daemon's own words, or when none runs."""
        text = urlencode({key: value for key, value in query.items() if value not in (None, "")})
        return self._answer("GET", f"/v1/{path}{'?' + text if text else ''}", None, TIMEOUT * 2)

    def post(self, command: str, seconds: float | None = None, **arguments: Any) -> Any:
        """Change something, within `seconds`. Argument `timeout`: seconds that open streams may finish."""
        if seconds is None:
            seconds = patience(arguments.get("timeout")) + 20
        body = json.dumps({key: value for key, value in arguments.items() if value is not None})
        return self._answer("POST", f"/v1/{command}", body, seconds)

    def follow(self, component: str, lines: int) -> Iterator[str]:
        """Log lines as they come, until the daemon ends."""
        query = urlencode({"follow": "1", "lines": lines, "component": component})
        connection, response = self._open("GET", f"/v1/logs?{query}", None, None)
        try:
            while line := response.readline():
                yield line.decode(errors="replace").rstrip("\n")
        finally:
            connection.close()

    def _answer(self, method: str, path: str, body: str | None, timeout: float) -> Any:
        connection, response = self._open(method, path, body, timeout)
        try:
            return json.loads(response.read() or b"null")
        finally:
            connection.close()

    def _open(
        self, method: str, path: str, body: str | None, timeout: float | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        tried: list[str] = []
        for candidate in socket_candidates(self._explicit):
            connection = _Unix(candidate, TIMEOUT)
            try:
                connection.connect()
            except PermissionError:
                raise UserError(f"you may not use the daemon at {candidate}", "join its group, or use sudo") from None
            except OSError:
                tried.append(str(candidate))
                continue
            connection.sock.settimeout(timeout)
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                response = connection.getresponse()
            except TimeoutError:
                raise UserError(f"the daemon at {candidate} did not answer in time", "see dynamo inspect") from None
            except (OSError, http.client.HTTPException) as error:
                raise UserError(f"the daemon at {candidate} broke off: {error or type(error).__name__}") from None
            if response.status >= 400:
                raise _error(response)
            return connection, response
        hint = "start one with dynamo serve or dynamod, or name its socket with --socket"
        raise UserError(f"no daemon is running (tried {', '.join(tried)})", hint, exit_code=3)


def _error(response: http.client.HTTPResponse) -> UserError:
    text = response.read()
    try:
        error = json.loads(text)["error"]
        return UserError(str(error["message"]), str(error.get("hint") or ""), exit_code=1)
    except (ValueError, KeyError, TypeError):
        return UserError(f"the daemon answered {response.status}: {text[:200]!r}", exit_code=1)
