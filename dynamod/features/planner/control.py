"""What answers the commands about planners in the daemon."""

from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.command import CommandHandler
from dynamod.message.errors import UserError

from .commands import PLAN, PLANNER, PlanArguments, PlannerArguments, PoolStatus

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext


async def planner(context: "CommandContext", arguments: PlannerArguments) -> list[PoolStatus]:
    """The pools of all planners, with their last ticks."""
    return await _planners(context, arguments)


async def plan(context: "CommandContext", arguments: PlanArguments) -> list[PoolStatus]:
    """Have planners pause, resume, or obey limits."""
    return await _planners(context, arguments)


async def _planners(context: "CommandContext", arguments: msgspec.Struct) -> list[PoolStatus]:
    from dynamod.control.context import UNASKED
    from dynamod.control.names import UnknownName

    given = {name: value for name, value in msgspec.structs.asdict(arguments).items() if value is not None}
    answers = await context.ask("planner", given)
    found = [
        msgspec.convert(pool | {"process": one.name}, PoolStatus)
        for one, pools in answers.items()
        if isinstance(pools, list)
        for pool in pools
    ]
    refused = [error for error in answers.values() if isinstance(error, UserError) and UNASKED not in str(error)]
    if not found and refused:
        raise refused[0]
    if not found:
        raise UnknownName("no planner runs", "serve a graph that has one, like graphs.agg_planner:Frontend")
    return found


HANDLERS = (CommandHandler(PLANNER, planner), CommandHandler(PLAN, plan))
