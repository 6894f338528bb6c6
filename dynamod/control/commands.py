"""Every command of the control socket: the core's and the features'."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.daemon.parts import through
from dynamod.extension.command import Command, CommandCall, CommandHandler, Peer, decode
from dynamod.extension.installed import control, installed

from . import changing, reading
from .context import CommandContext
from .refusals import Refusal, UnknownCommand

if TYPE_CHECKING:
    from dynamod.daemon.node import Node
    from dynamod.daemon.parts import DaemonPart

CORE = {handler.command.name: handler for handler in (*reading.HANDLERS, *changing.HANDLERS)}


def known() -> Iterable[Command[Any, Any]]:
    """All commands, also of features that are off, which say so."""
    features = (handler for feature in installed().values() for handler in feature.controls())
    return [handler.command for handler in (*CORE.values(), *features)]


class Commands:
    """Answers commands by their names. Component names may have a graph's name before them, and a number after them.

    For instance `agg/Worker.0`. `around`: the parts of features through which commands pass, the outermost first.
    """

    def __init__(self, node: "Node", around: "Callable[[], Iterable[DaemonPart]]" = tuple) -> None:
        self._context, self._around = CommandContext(node), around

    @staticmethod
    def find(command: str) -> CommandHandler[Any, Any]:
        """The command of a name. Raises UnknownCommand, and UserError where its feature is off."""
        handler = control(command) or CORE.get(command)
        if handler is None:
            raise UnknownCommand(f"unknown command '{command}'", "see /v1")
        return handler

    async def call(
        self, command: str, arguments: Mapping[str, Any], sender: str = "", peer: Peer = Peer(), *, signed: bool = False
    ) -> Any:
        """Run a command. Returns what is sent as JSON, or text. Raises UserError.

        `sender`: the node that asks, which has `signed` the command; empty: a client of the control socket, `peer`.
        """
        handler = self.find(command)
        call = CommandCall(handler.command, arguments, sender, peer, signed)
        return await through(self._around(), call, partial(self._answer, handler))

    def refused(self, call: CommandCall, refusal: Refusal) -> None:
        """Tell the parts of features of a command whose client may not change anything."""
        for part in self._around():
            part.refused(call, refusal.status, refusal.message)

    async def _answer(self, handler: CommandHandler[Any, Any], call: CommandCall) -> Any:
        return msgspec.to_builtins(await handler.answer(self._context, decode(handler.command, call.arguments)))
