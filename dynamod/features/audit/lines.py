"""The lines of the files: what of a record is written, and bodies without the values that must not be kept."""

import json
import pwd
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dynamod.extension.command import CommandCall
from dynamod.graph.diff import is_secret
from dynamod.message.hints import printable
from dynamod.observe.records import RequestRecord, WorkerPlace

MASKED = "***"
BODIES = ("request_body", "response_body")
LONGEST = 200
"""Characters of a text in the arguments of a command."""
DEEP = 8
"""Levels of an argument that a line has."""


class RequestLine(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="request"):
    """One request. The fields are those of `RequestRecord`; `workers` has the names of processes, each once."""

    time: datetime
    id: str
    client: str
    key: str
    method: str
    path: str
    model: str
    status: int
    error: str
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    queue_ms: float | None
    first_ms: float | None
    duration_ms: float
    finish: str
    stream: bool
    workers: list[str]
    migrations: int
    node: str
    process: str
    notes: dict[str, str] = {}
    request_body: Any = None
    response_body: Any = None


class CommandLine(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="command"):
    """One command that changes something, if it is allowed.

    `arguments`: values of secrets are masked. `uid`, `user`, `pid`: of the process at the other end of the control
    socket, as the kernel says; None and empty where it does not. `status`: of the HTTP answer; 499: the client left.
    `error`: its message. `sender`: the node that sent the command; empty: a client of this node.
    """

    time: datetime
    command: str
    arguments: dict[str, Any]
    uid: int | None
    user: str
    pid: int | None
    status: int
    error: str
    duration_ms: float
    node: str
    sender: str = ""


class DroppedLine(msgspec.Struct, frozen=True, tag_field="kind", tag="dropped"):
    """So many lines are missing before this one."""

    time: datetime
    lines: int


_encode = msgspec.json.Encoder().encode


def _line(found: msgspec.Struct) -> bytes:
    """An entry as a line; lone surrogates, which clients may send, become question marks."""
    try:
        return _encode(found) + b"\n"
    except UnicodeEncodeError:
        return _encode(_readable(msgspec.to_builtins(found))) + b"\n"


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _readable(one) for key, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, list) else value


def request_line(record: RequestRecord, redact: Collection[str] = ()) -> bytes:
    """A request as a line. `redact`: names of members in small letters."""
    bodies = record.request_body or record.response_body
    found = RequestLine(
        datetime.fromtimestamp(record.time, UTC),
        record.id,
        record.client,
        record.key,
        record.method,
        record.path,
        record.model,
        record.status,
        record.error,
        record.prompt_tokens,
        record.cached_tokens,
        record.completion_tokens,
        record.queue_ms,
        record.first_ms,
        record.duration_ms,
        record.finish,
        record.stream,
        _names(record.workers),
        record.migrations,
        record.node,
        record.process,
        dict(record.notes),
        redacted(record.request_body, redact) if bodies else None,
        redacted(record.response_body, redact) if bodies else None,
    )
    return _line(found)


def command_line(call: CommandCall, began: float, status: int, error: str, node: str) -> bytes:
    """A command that ends now as a line. `began`: Unix seconds. `status`, `error`: of the answer."""
    uid, pid = call.peer.uid, call.peer.pid
    found = CommandLine(
        datetime.fromtimestamp(began, UTC),
        call.command.name,
        masked(call.arguments),
        uid,
        _user(uid),
        pid or None,
        status,
        error,
        round((time.time() - began) * 1000, 3),
        node,
        call.sender,
    )
    return _line(found)


def masked(value: Any, levels: int = DEEP) -> Any:
    """A JSON-like value of a line: values of members that name secrets are masked, long texts are cut."""
    if isinstance(value, Mapping):
        if levels == 0:
            return "..."
        return {key: MASKED if one and is_secret(str(key)) else masked(one, levels - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, levels - 1) for one in value] if levels else "..."
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]}..."
    return value


def _user(uid: int | None) -> str:
    try:
        return pwd.getpwuid(uid).pw_name if uid is not None else ""
    except KeyError:
        return ""  # a user of a container, for instance


def dropped_line(count: int) -> bytes:
    """The line that tells that lines are missing."""
    return _encode(DroppedLine(datetime.now(UTC), count)) + b"\n"


def redacted(body: bytes | None, names: Collection[str]) -> Any:
    """A body as a JSON value in which the values of these members are masked; a list of its events for a stream.

    None for a body that is no JSON: what cannot be read cannot be redacted.
    """
    if not body:
        return None
    try:
        return _masked(json.loads(body), names)
    except (ValueError, RecursionError):
        pass
    found = []
    for event in body.split(b"\n\n")[:-1]:  # the last one is empty, or cut
        for line in event.split(b"\n"):
            if line.startswith(b"data: {"):
                try:
                    found.append(_masked(json.loads(line[len(b"data: ") :]), names))
                except (ValueError, RecursionError):
                    continue
    return found or None


def _masked(value: Any, names: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {key: MASKED if key.lower() in names else _masked(one, names) for key, one in value.items()}
    return [_masked(one, names) for one in value] if isinstance(value, list) else value


def _names(workers: tuple[WorkerPlace, ...]) -> list[str]:
    """Names of processes with the node of each that is known, or instance ids of workers that have no name."""
    if len(workers) == 1:
        return [workers[0].process or str(workers[0].instance)]
    return list(dict.fromkeys([one.process or str(one.instance) for one in workers]))
