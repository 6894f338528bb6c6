"""The page about the control socket: every command with its route and its arguments."""

from collections.abc import Iterator
from typing import Any

import msgspec

from dynamod.control.commands import known
from dynamod.extension.command import Command, allowed

from .text import code, page, table

INTRO = (
    "The daemon answers HTTP requests on a unix socket, the control socket. `dynamo status --socket-path` prints its "
    "path. `curl --unix-socket PATH http://localhost/v1/status` asks the same as `dynamo status`."
)
ARGUMENTS = (
    "The arguments of a command that reads are given in the URL. The arguments of a command that changes something are "
    "a JSON object in the body, or in the URL. Unknown arguments are ignored. The last part of a route may be left out "
    "if it stands in braces."
)
ERRORS = (
    '`{"error": {"message": ..., "hint": ...}}` with status 400, 403, 404, 409, 500 or 504. A change that takes a '
    'model\'s last worker away is refused with status 409 and `"code": "last_worker"`, unless `force` is true.'
)


def control() -> str:
    """The page of the control socket."""
    found = sorted(known(), key=lambda command: command.changes)
    rows = [(code(_route(one)), f"[{one.name}](#{one.name})", one.summary) for one in found]
    parts = [table(("route", "command", "meaning"), rows), ARGUMENTS, f"## Errors\n\nAn error is {ERRORS}"]
    return page("Control API", INTRO, *parts, *map(_command, found))


def _route(command: Command[Any, Any]) -> str:
    subject = f"{{{command.subject}}}"
    path = command.routes()[0].format(subject=subject)
    takes = any(field.name == command.subject for field in msgspec.structs.fields(command.arguments))
    further = f"/{subject}" if takes and not command.path else ""
    return f"{'POST' if command.changes else 'GET'} {path}{further}"


def _command(command: Command[Any, Any]) -> str:
    texts = [" ".join(kind.__doc__.split()) for kind in _documented(command.arguments) if kind.__doc__]
    rows = [_argument(field) for field in msgspec.structs.fields(command.arguments)]
    head = f"## {command.name}\n\n{code(_route(command))}: {command.summary[0].lower()}{command.summary[1:]}"
    return "\n\n".join(filter(None, [head, " ".join(texts) if rows else "", table(_HEAD, rows)]))


_HEAD = ("argument", "type", "default", "allowed")


def _documented(kind: type) -> Iterator[type]:
    """The struct and its bases, the most general first."""
    return (one for one in reversed(kind.__mro__) if one not in (object, msgspec.Struct) and "__doc__" in vars(one))


def _argument(field: msgspec.structs.FieldInfo) -> tuple[str, str, str, str]:
    default = "" if field.required or field.default in (None, "") else msgspec.json.encode(field.default).decode()
    return (
        code(field.name),
        _type(msgspec.json.schema(field.type)),
        "required" if field.required else code(default.removesuffix(".0")),
        allowed(field.type).removeprefix("give "),
    )


def _type(schema: dict[str, Any]) -> str:
    """The type of a JSON schema; a value of any type is an object here."""
    kinds = ["string" if "enum" in one else str(one.get("type", "object")) for one in schema.get("anyOf", [schema])]
    return " or ".join(kind for kind in kinds if kind != "null")
