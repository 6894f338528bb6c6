"""What answers the commands of trust in the daemon, and what nodes must have in common."""

from typing import TYPE_CHECKING

from dynamod.extension.command import CommandHandler, NoArguments
from dynamod.message.errors import UserError

from .commands import SET_TRUST, TRUST, SetTrustArguments, TrustState
from .daemon import FEATURE, TrustPart

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext
    from dynamod.daemon.node import Node


async def trust(context: "CommandContext", _arguments: NoArguments) -> TrustState:
    """The secrets and the mode."""
    return part_of(context.node).state()


async def set_trust(context: "CommandContext", arguments: SetTrustArguments) -> TrustState:
    """Change the mode, or read the secret again."""
    return await part_of(context.node).set(arguments)


def part_of(node: "Node") -> TrustPart:
    """The part of a daemon. Raises UserError where it does not run."""
    part = node.parts.of_features.get(FEATURE)
    if not isinstance(part, TrustPart):
        raise UserError("the daemon has no part for trust", "see dynamo features")
    return part


HANDLERS = (CommandHandler(TRUST, trust), CommandHandler(SET_TRUST, set_trust))
