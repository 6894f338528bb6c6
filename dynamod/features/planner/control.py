"""Commands of the control socket: what planners say, and what they are told."""

from typing import TYPE_CHECKING, Any

from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from dynamod.control.commands import Commands
    from dynamod.control.names import Arguments


async def planner(commands: "Commands", arguments: "Arguments") -> list[dict[str, Any]]:
    """The pools of all planners, with their last ticks; `component`: one pool."""
    return await _planners(commands, {"component": arguments.get("component", "")})


async def plan(commands: "Commands", arguments: "Arguments") -> list[dict[str, Any]]:
    """Planners `pause`, `resume` or `set` limits (`action`), of all pools or of one `component`."""
    if arguments.get("action") not in ("pause", "resume", "set"):
        raise UserError(f"action is {arguments.get('action')!r}", "pause, resume, set")
    return await _planners(commands, arguments)


async def _planners(commands: "Commands", arguments: "Arguments") -> list[dict[str, Any]]:
    from dynamod.control.commands import UNASKED
    from dynamod.control.names import UnknownName

    answers = await commands.ask("planner", arguments)
    found = [
        pool | {"process": one.name} for one, pools in answers.items() if isinstance(pools, list) for pool in pools
    ]
    refused = [error for error in answers.values() if isinstance(error, UserError) and UNASKED not in str(error)]
    if not found and refused:
        raise refused[0]
    if not found:
        raise UnknownName("no planner runs", "serve a graph that has one, like graphs.agg_planner:Frontend")
    return found
