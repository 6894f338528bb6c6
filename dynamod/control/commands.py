"""Every command of the control socket: the core's and the features'."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.extension.command import Command, decode
from dynamod.extension.installed import control, installed
from dynamod.message.errors import UserError

from . import changing, reading
from .context import CommandContext

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

CORE = {handler.command.name: handler for handler in (*reading.HANDLERS, *changing.HANDLERS)}


def known() -> Iterable[Command[Any, Any]]:
    """All commands, also of features that are off, which say so."""
    features = (handler for feature in installed().values() for handler in feature.controls())
    return [handler.command for handler in (*CORE.values(), *features)]


class Commands:
    """Answers commands by their names. Component names may have a graph's name before them, and a number after them.

    For instance `agg/Worker.0`.
    """

    def __init__(self, node: "Node") -> None:
        self._context = CommandContext(node)

    async def call(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command. Returns what is sent as JSON, or text. Raises UserError."""
        handler = control(command) or CORE.get(command)
        if handler is None:
            raise UserError(f"unknown command '{command}'", "see /v1")
        answer = await handler.answer(self._context, decode(handler.command, arguments))
        return msgspec.to_builtins(answer)
