"""Which commands a daemon takes from other nodes."""

from collections.abc import Mapping
from typing import Literal, get_args

from dynamod.extension.command import CommandCall
from dynamod.message.errors import UserError

VARIABLE = "DYNAMOD_REMOTE_COMMANDS"
RemoteCommands = Literal["read", "all", "off"]


def remote_commands(environ: Mapping[str, str]) -> RemoteCommands:
    """The value of DYNAMOD_REMOTE_COMMANDS. Raises UserError for an unknown one."""
    given = environ.get(VARIABLE) or "read"
    for known in get_args(RemoteCommands):
        if given == known:
            return known  # type: ignore[no-any-return]
    hint = "read (default): commands that change nothing; all: every command but serve and reload; off: none"
    raise UserError(f"{VARIABLE} is {given!r}", hint)


def signed_changes(environ: Mapping[str, str]) -> bool:
    """Whether signed commands of other nodes may change something: unless the variable limits this node to `read`."""
    return not environ.get(VARIABLE)


def require_allowed(call: CommandCall, mode: RemoteCommands, node: str, *, signed_changes: bool = False) -> None:
    """Refuse a command of another node that this node does not take. The one place where such commands are judged.

    Raises UserError, which names the setting.
    """
    command = call.command
    if command.own_node:
        raise UserError(f"{command.name} is never taken from another node", f"run it on {node}")
    if mode == "off":
        raise UserError(f"{node} takes no commands from other nodes", f"set {VARIABLE}=read for its daemon")
    if command.changes and mode != "all" and not (call.signed and signed_changes):
        what = f"{node} takes no commands from other nodes that change something, like {command.name}"
        secret = "" if not signed_changes else "give both nodes a cluster secret (see dynamo trust), or "
        raise UserError(what, f"run it on {node}, or {secret}set {VARIABLE}=all for the daemon there")
