"""The page about the control socket: every command with its route and its arguments."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from dynamod.control.commands import known
from dynamod.extension.command import Command, allowed

from .text import code, page, table

INTRO = (
    "The daemon answers HTTP requests on a unix socket, the control socket. `dynamo status --socket-path` prints its "
    "path. `curl --unix-socket PATH http://localhost/v1/status` asks the same as `dynamo status`."
)
ARGUMENTS = (
    "The arguments of a command that reads are given in the URL. The arguments of a command that changes something are "
    "a JSON object in the body, or in the URL. Unknown arguments are ignored, unless the command says otherwise. The "
    "last part of a route may be left out if it stands in braces. With `follow=SECONDS` (0.1 to 3600) in "
    "the URL the answer of a command that reads comes again and again, as server-sent events. `logs` and `metrics` do "
    "not have such events."
)
ERRORS = (
    '`{"error": {"message": ..., "hint": ...}}` with status 400, 403, 404, 409, 500 or 504. A change that takes a '
    'model\'s last worker away is refused with status 409 and `"code": "last_worker"`, unless `force` is true.'
)

OBJECTS = "Daemons of later releases may add fields. Fields that have no meaning for an object may be absent."


def control() -> str:
    """The page of the control socket."""
    found = sorted(known(), key=lambda command: command.changes)
    rows = [(code(_route(one)), f"[{one.name}](#{one.name})", one.summary) for one in found]
    parts = [table(("route", "command", "meaning"), rows), ARGUMENTS, f"## Errors\n\nAn error is {ERRORS}"]
    kinds = {kind.__name__: kind for one in found for kind in _structs(inspect.type_info(one.answer))}
    objects = [_object(kinds[name]) for name in sorted(kinds)]
    return page("Control API", INTRO, *parts, *map(_command, found), f"## Objects in answers\n\n{OBJECTS}", *objects)


def _route(command: Command[Any, Any]) -> str:
    subject = f"{{{command.subject}}}"
    path = command.routes()[0].format(subject=subject)
    takes = any(field.name == command.subject for field in msgspec.structs.fields(command.arguments))
    further = f"/{subject}" if takes and not command.path else ""
    return f"{'POST' if command.changes else 'GET'} {path}{further}"


def _command(command: Command[Any, Any]) -> str:
    rows = [_argument(field) for field in msgspec.structs.fields(command.arguments)]
    head = f"## {command.name}\n\n{code(_route(command))}: {command.summary[0].lower()}{command.summary[1:]}"
    text = _text(command.arguments)
    if command.arguments.__struct_config__.forbid_unknown_fields:
        text += " Unknown arguments are refused."
    (answer,), _ = msgspec.json.schema_components([command.answer], ref_template="{name}")
    parts = [head, text if rows else "", table(_HEAD, rows), f"Answer: {_linked(answer)}."]
    return "\n\n".join(filter(None, parts))


def _structs(kind: inspect.Type) -> Iterator[type]:
    """The struct that a type is, and the structs within it."""
    match kind:
        case inspect.StructType():
            yield kind.cls
            within = [field.type for field in kind.fields]
        case inspect.ListType():
            within = [kind.item_type]
        case inspect.DictType():
            within = [kind.value_type]
        case inspect.UnionType():
            within = list(kind.types)
        case _:
            within = []
    for one in within:
        yield from _structs(one)


def _object(kind: type) -> str:
    (_,), found = msgspec.json.schema_components([kind], ref_template="{name}")
    rows = [(code(field), _linked(schema)) for field, schema in found[kind.__name__]["properties"].items()]
    return f"### Object {kind.__name__}\n\n{_text(kind)}\n\n{table(('field', 'type'), rows)}"


def _linked(schema: dict[str, Any]) -> str:
    """The type of a field of an answer, with links to objects."""
    if "anyOf" in schema:
        return " or ".join(map(_linked, schema["anyOf"]))
    if (name := schema.get("$ref")) is not None:
        return f"[{name}](#object-{name.lower()})"
    within = schema.get("items") or schema.get("additionalProperties")
    kind = {"array": "list", "object": "object"}.get(schema.get("type", "object"), schema.get("type", "object"))
    return f"{kind} of {_linked(within)}" if isinstance(within, dict) and within else str(kind)


_HEAD = ("argument", "type", "default", "allowed")


def _text(kind: type) -> str:
    """What the docstrings of the struct and its bases say, the most general first."""
    found = (vars(one).get("__doc__") for one in reversed(kind.__mro__) if one not in (object, msgspec.Struct))
    return " ".join(" ".join(text.split()) for text in found if text)


def _argument(field: msgspec.structs.FieldInfo) -> tuple[str, str, str, str]:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    default = "" if field.required or value in (None, "") else msgspec.json.encode(value).decode()
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
