"""`dynamo switch`: workers get another role."""

import enum
from typing import Annotated

import typer

from dynamod.cli.ask import ask_agreed
from dynamod.cli.complete import rows
from dynamod.cli.options import Finish, Force, Form, Output, Socket, examples
from dynamod.message.control import FINISH

from .commands import SWITCH, SwitchArguments

app = typer.Typer(rich_markup_mode=None)


class Role(enum.StrEnum):
    """What a worker is for."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


def workers(incomplete: str) -> list[str]:
    """Processes of the running daemon that have a role, and their components."""
    found = [row for row in rows() if row.role]
    names = {name for row in found for name in (row.component, row.process.rpartition("/")[2])}
    return sorted(name for name in names if name.startswith(incomplete))


@app.command(
    "switch",
    short_help="Give a worker another role: prefill, decode, aggregated",
    rich_help_panel="Change components",
    epilog=examples("dynamo switch Worker.1 prefill", "dynamo switch agg/PrefillWorker decode --timeout 30"),
)
def switch(
    component: Annotated[str, typer.Argument(help="worker, like Worker.1; or all of Worker", autocompletion=workers)],
    role: Annotated[Role, typer.Argument(help="what it is for from now on")],
    force: Force = False,
    timeout: Finish = FINISH,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Give a worker another role: prefill, decode, aggregated.

    The worker is not restarted: its model and KV cache stay. Open requests finish first.
    Several workers change one after the other.
    """
    from dynamod.cli.show import left

    arguments = SwitchArguments(component=component, role=role.value, force=force, timeout=timeout)
    ask_agreed(SWITCH, arguments, left, socket, output)
