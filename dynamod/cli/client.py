"""The command line's side of the control socket: one request per verb, by the standard library alone."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Generic
from urllib.parse import quote, urlencode

import msgspec

from dynamod.extension.command import A, Command, R
from dynamod.message.errors import UserError
from dynamod.runtime.owned import check_socket
from dynamod.runtime.paths import socket_candidates
from dynamod.runtime.release import check_release

TIMEOUT = 5.0
"""Seconds until the daemon has taken a connection."""


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

    def ask(self, command: Command[A, R], arguments: A) -> "ControlAnswer[R]":
        """Have the daemon run a command. Raises UserError with the daemon's own words, or when no daemon runs."""
        path, given = _address(command, arguments)
        if command.changes:
            text = self._text("POST", path, json.dumps(given), command.patience(arguments))
        else:
            text = self._text("GET", _url(path, given), None, command.patience(arguments))
        return ControlAnswer(text.decode() if command.answer is str else json.loads(text or b"null"), command)

    def answers(self, command: Command[A, R], arguments: A, every: float) -> "Iterator[ControlAnswer[R]]":
        """The answers to a question, the first one at once and then one every so many seconds, over one connection.

        Raises UserError when no daemon runs, when the daemon ends, or when nothing comes for too long.
        """
        path, given = _address(command, arguments)
        url = _url(path, {**given, "follow": f"{every:g}"})
        with self._open("GET", url, None, every + command.patience(arguments)) as response:
            failed = False
            while line := _line(response):
                failed = failed or line.startswith(b"event: error")
                if line.startswith(b"data: "):
                    value = json.loads(line[len(b"data: ") :])
                    if failed:
                        raise UserError(str(value), exit_code=1)
                    yield ControlAnswer(value, command)
        raise UserError("the daemon has ended", "start one with dynamo serve or dynamod", exit_code=3)

    def follow(self, component: str, lines: int) -> Iterator[str]:
        """Log lines as they come, until the daemon ends."""
        query = urlencode({"follow": "1", "lines": lines, "component": component})
        with self._open("GET", f"/v1/logs?{query}", None, None) as response:
            while line := response.readline():
                yield line.decode(errors="replace").rstrip("\n")

    def _text(self, method: str, path: str, body: str | None, timeout: float) -> bytes:
        with self._open(method, path, body, timeout) as response:
            return response.read()

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


def _address(command: Command[A, R], arguments: A) -> tuple[str, dict[str, Any]]:
    """The path of a command, and the arguments that are not in the path."""
    given = {name: one for name, one in msgspec.to_builtins(arguments).items() if one not in (None, "")}
    path = f"/v1/{command.path or command.name}"
    if command.path:
        path = path.format(subject=quote(str(given.pop(command.subject, "")), safe=""))
    return path, given


def _url(path: str, given: Mapping[str, Any]) -> str:
    query = urlencode({name: one if isinstance(one, str) else json.dumps(one) for name, one in given.items()})
    return f"{path}?{query}" if query else path


def _line(response: HTTPResponse) -> bytes:
    """The next line of a stream, empty at its end. Raises UserError."""
    try:
        return response.readline()
    except TimeoutError:
        raise UserError("the daemon did not answer in time", "see dynamo inspect") from None
    except (OSError, HTTPException) as error:
        raise UserError(f"the daemon broke off: {error or type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class ControlAnswer(Generic[R]):
    """`raw`: JSON as the daemon has sent it, also fields that only a newer release knows."""

    raw: Any
    command: Command[Any, R]

    @property
    def value(self) -> R:
        """The answer as its type. Raises UserError when it is of another form."""
        try:
            return msgspec.convert(self.raw, self.command.answer)
        except msgspec.ValidationError as error:
            what = f"the daemon's answer to {self.command.name} is of another release: {error}"
            raise UserError(what, "restart the daemon, or use --output json", exit_code=1) from None


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
