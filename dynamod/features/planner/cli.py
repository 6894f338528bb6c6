"""`dynamo planner`: look at the planners of the daemon's graphs, and steer them."""

from typing import Annotated, Literal

import typer

from dynamod.cli import complete
from dynamod.cli.ask import ask
from dynamod.cli.options import Form, Output, Socket, examples
from dynamod.message.errors import UserError

app = typer.Typer(
    help="Planners: how many workers each pool has, and why.",
    epilog=examples("dynamo planner status", "dynamo planner set min=1 max=8", "dynamo explain planner"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

Pool = Annotated[
    str, typer.Option("--pool", help="a component, like Worker; default: all", autocompletion=complete.components)
]


@app.command(epilog=examples("dynamo planner status", "dynamo planner status --pool Worker --output json"))
def status(pool: Pool = "", socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Show each pool: workers, what is wanted, limits, and why."""
    from .commands import PLANNER, PlannerArguments
    from .show import status_of

    ask(PLANNER, PlannerArguments(component=pool), status_of, socket, output)


@app.command(epilog=examples("dynamo planner pause", "dynamo planner pause --pool Worker"))
def pause(pool: Pool = "", socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Start and stop no workers until `resume`. Decisions are shown meanwhile."""
    _plan(socket, output, pool, "pause")


@app.command(epilog=examples("dynamo planner resume"))
def resume(pool: Pool = "", socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Continue after a pause, after `dynamo scale`, or when workers have failed too often to be started again."""
    _plan(socket, output, pool, "resume")


@app.command("set", epilog=examples("dynamo planner set min=1 max=8", "dynamo planner set max=4 --pool Worker"))
def set_limits(
    limits: Annotated[list[str], typer.Argument(help="min=N: workers at least; max=N: at most")],
    pool: Pool = "",
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Change the limits until the planner ends; its config file says those of the next time."""
    given: dict[str, int] = {}
    for limit in limits:
        key, _, value = limit.partition("=")
        if key not in ("min", "max") or not value.isdecimal():
            raise UserError(f"'{limit}' is no limit", "write min=1, max=8, or both")
        given[key] = int(value)
    _plan(socket, output, pool, "set", **given)


def _plan(
    socket: str | None, output: Form, pool: str, action: Literal["pause", "resume", "set"], **limits: int
) -> None:
    from .commands import PLAN, PlanArguments
    from .show import status_of

    ask(PLAN, PlanArguments(action=action, component=pool, **limits), status_of, socket, output)


def explain(socket: str | None, output: Form) -> None:
    """`dynamo explain planner`: the last decisions about the size of pools."""
    from .commands import PLANNER, PlannerArguments
    from .show import decisions

    ask(PLANNER, PlannerArguments(), decisions, socket, output)
