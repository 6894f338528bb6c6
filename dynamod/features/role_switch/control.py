"""What answers `switch` in the daemon."""

from typing import TYPE_CHECKING

from dynamod.extension.command import CommandHandler
from dynamod.message.rows import Row

from .commands import SWITCH, SwitchArguments

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext


async def switch(context: "CommandContext", arguments: SwitchArguments) -> list[Row]:
    """Have the workers of a component change their role, one after the other."""
    from dynamod.control.last_worker import require_others_than
    from dynamod.daemon.scaling import by_hand

    graph, component = context.names.started(arguments)
    role = arguments.role
    require_others_than(context.node, graph, component, force=arguments.force, role=role)
    with by_hand(graph, component):
        await graph.switch(component, role, arguments.timeout, arguments.expected_epoch)
    return context.names.rows_of(graph, component)


HANDLERS = (CommandHandler(SWITCH, switch),)
