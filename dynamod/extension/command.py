"""A command of the control socket: the daemon and the command line read the same object."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from dynamod.message.control import patience
from dynamod.message.errors import UserError

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")

READING = 10.0
"""Seconds in which the daemon answers a question."""
REMAINDER = 20.0
"""Seconds that a change takes beyond what open streams get to finish."""


class NoArguments(msgspec.Struct, frozen=True):
    """Arguments of a command that takes none."""


@dataclass(frozen=True, slots=True)
class Command(Generic[A, R]):
    """`GET /v1/NAME`, or `POST /v1/NAME` for a command that `changes` something.

    `arguments`: a struct. The description of a field's `msgspec.Meta` says which values are allowed. `answer`: the type
    of the answer, which is sent as JSON; text is sent as it is. Each field of an answer has a default, so that the
    answer of an older daemon can be read. `summary`: for the manual.

    `subject`: the argument that a further part of the path gives, `/v1/NAME/SUBJECT`. `path`: the route, where it is
    not the name, with `{subject}` in it. `seconds`: how long a client waits for the answer; None: as long as open
    streams may finish, by the argument `timeout`. `own_node`: never taken from another node.
    """

    name: str
    arguments: type[A]
    answer: type[R]
    summary: str
    changes: bool = False
    subject: str = "component"
    path: str = ""
    seconds: float | None = None
    own_node: bool = False

    def routes(self) -> tuple[str, ...]:
        """Paths of the command, in the notation of aiohttp."""
        path = f"/v1/{self.path or self.name}"
        return (path,) if self.path else (path, f"{path}/{{subject:.+}}")

    def patience(self, arguments: A) -> float:
        """Seconds after which a client gives up."""
        if self.seconds is not None or not self.changes:
            return self.seconds or READING
        return patience(getattr(arguments, "timeout", None)) + REMAINDER


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of the control socket. None and 0 where the kernel does not say."""

    uid: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command with its arguments as JSON. `sender`: the node that asks; empty: a client of the control socket.

    `peer`: that client. `signed`: the sender has signed the command, so its name is known to be right.
    """

    command: Command[Any, Any]
    arguments: Mapping[str, Any]
    sender: str = ""
    peer: Peer = Peer()
    signed: bool = False

    @property
    def name(self) -> str:
        """What the command is about: the argument that is its subject. Empty where it has none."""
        return str(self.arguments.get(self.command.subject) or "")

    def named(self, name: str) -> "CommandCall":
        """The same about another subject."""
        return replace(self, arguments={**self.arguments, self.command.subject: name})


Proceed = Callable[[CommandCall], Awaitable[Any]]
"""Answers a command: the answer as JSON, or text. Raises UserError."""


@dataclass(frozen=True, slots=True)
class CommandHandler(Generic[A, R]):
    """What answers a command in the daemon: with a `control.context.CommandContext`. `answer` raises UserError."""

    command: Command[A, R]
    answer: Callable[[Any, A], Awaitable[R]]


def decode(command: Command[A, Any], given: Mapping[str, Any]) -> A:
    """The arguments of a command, from JSON. Unknown arguments are ignored, if the struct does not forbid them.

    Raises UserError with the name of the argument, its value, and what is allowed.
    """
    found, fields = {}, msgspec.structs.fields(command.arguments)
    unknown = given.keys() - {field.name for field in fields}
    if unknown and command.arguments.__struct_config__.forbid_unknown_fields:
        known = ", ".join(field.name for field in fields)
        raise UserError(f"unknown argument {min(unknown)}", f"{command.name} takes {known}")
    for field in fields:
        if field.name in given or field.required:
            found[field.name] = _value(field, given.get(field.name))
    return command.arguments(**found)


def from_query(command: Command[Any, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of a URL: JSON, where the argument is not a text itself."""
    texts = {field.name for field in msgspec.structs.fields(command.arguments) if field.type is str}
    return {key: value if key in texts else _parsed(value) for key, value in query.items()}


def allowed(kind: Any) -> str:
    """Which values an argument of this type may have, in words; empty when the type says no more."""
    if get_origin(kind) is Literal:
        return f"one of: {', '.join(get_args(kind))}"
    notes = [note.description for note in getattr(kind, "__metadata__", ()) if isinstance(note, msgspec.Meta)]
    return next(filter(None, [*notes, *map(allowed, get_args(kind))]), "")


def _value(field: msgspec.structs.FieldInfo, value: Any) -> Any:
    if field.type is str:
        return str(value or "")
    if field.type is bool:
        return bool(value)
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError:
        raise UserError(f"{field.name} is {value!r}", allowed(field.type)) from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
