"""The command line's side of the control socket: one request per verb, by the standard library alone."""

import contextlib
import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dynamod.message.control import patience
from dynamod.message.errors import UserError
from dynamod.runtime.owned import check_socket
from dynamod.runtime.paths import socket_candidates
from dynamod.runtime.release import check_release

TIMEOUT = 5.0


class _Unix(HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("dynamod", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Control:
    """A running daemon. Tries every usual place of the socket; `explicit` or DYNAMOD_SOCKET names it.

    `any_release`: also one of another protocol, as `dynamo stop` has to reach it.
    """

    def __init__(self, explicit: str | None = None, *, any_release: bool = False) -> None:
        self._explicit, self._any_release = explicit, any_release

    def path(self) -> Path:
        """Where the daemon's control socket is. Raises UserError when none runs."""
        with contextlib.closing(self._connected()) as connection:
            return connection.path

    def get(self, path: str, **query: Any) -> Any:
        """Read something. Raises UserError with the daemon's own words, or when none runs."""
        text = urlencode({key: value for key, value in query.items() if value not in (None, "")})
        return self._answer("GET", f"/v1/{path}{'?' + text if text else ''}", None, TIMEOUT * 2)

    def metrics(self) -> str:
        """Statistics of the daemon and of all its processes, as Prometheus text. Raises UserError."""
        with self._open("GET", "/v1/metrics", None, TIMEOUT * 2) as response:
            return response.read().decode()

    def post(self, command: str, seconds: float | None = None, **arguments: Any) -> Any:
        """Change something, within `seconds`. Argument `timeout`: seconds that open streams may finish."""
        if seconds is None:
            seconds = patience(arguments.get("timeout")) + 20
        body = json.dumps({key: value for key, value in arguments.items() if value is not None})
        return self._answer("POST", f"/v1/{command}", body, seconds)

    def follow(self, component: str, lines: int) -> Iterator[str]:
        """Log lines as they come, until the daemon ends."""
        query = urlencode({"follow": "1", "lines": lines, "component": component})
        with self._open("GET", f"/v1/logs?{query}", None, None) as response:
            while line := response.readline():
                yield line.decode(errors="replace").rstrip("\n")

    def _answer(self, method: str, path: str, body: str | None, timeout: float) -> Any:
        with self._open(method, path, body, timeout) as response:
            return json.loads(response.read() or b"null")

    @contextlib.contextmanager
    def _open(self, method: str, path: str, body: str | None, timeout: float | None) -> Iterator[HTTPResponse]:
        connection = self._connected()
        connection.sock.settimeout(timeout)
        where = f"the daemon at {connection.path}"
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
        except TimeoutError:
            raise UserError(f"{where} did not answer in time", "see dynamo inspect") from None
        except (OSError, HTTPException) as error:
            raise UserError(f"{where} broke off: {error or type(error).__name__}") from None
        with contextlib.closing(connection):
            if response.status >= 400:
                raise _error(response)
            yield response

    def _connected(self) -> _Unix:
        tried: list[str] = []
        for candidate in socket_candidates(self._explicit):
            check_socket(candidate)
            connection = _Unix(candidate, TIMEOUT)
            try:
                connection.connect()
                if not self._any_release:
                    check_release(candidate)
                return connection
            except PermissionError:
                raise UserError(f"you may not use the daemon at {candidate}", "join its group, or use sudo") from None
            except OSError:
                tried.append(str(candidate))
        hint = "start one with dynamo serve or dynamod, or name its socket with --socket"
        raise UserError(f"no daemon is running (tried {', '.join(tried)})", hint, exit_code=3)


class ChangeRefused(UserError):
    """The daemon has refused a change by a code, like `last_worker`, and has changed nothing."""

    def __init__(self, message: str, hint: str, code: str) -> None:
        super().__init__(message, hint, exit_code=1)
        self.code = code


def _error(response: HTTPResponse) -> UserError:
    text = response.read()
    try:
        error = json.loads(text)["error"]
        message, hint, code = str(error["message"]), str(error.get("hint") or ""), str(error.get("code") or "")
        return ChangeRefused(message, hint, code) if code else UserError(message, hint, exit_code=1)
    except (ValueError, KeyError, TypeError):
        return UserError(f"the daemon answered {response.status}: {text[:200]!r}", exit_code=1)
