"""`dynamo nodes`: the arguments."""

import typer

from dynamod.cli.ask import ask
from dynamod.cli.options import Form, Output, Socket, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "nodes",
    short_help="List the nodes of the cluster, with version and clock",
    rich_help_panel="Look",
    epilog=examples("dynamo nodes", "dynamo nodes --output json"),
)
def nodes(socket: Socket = None, output: Output = Form.TEXT) -> None:
    """List the nodes of the cluster: version, protocol, address, processes, models, progress, clock difference.

    A node that does not answer is in the list, with the reason. Exit code 1 when there is one.
    """
    from dynamod.extension.command import NoArguments

    from .commands import ANSWERS, NODES
    from .show import nodes as form

    answer = ask(NODES, NoArguments(), form, socket, output)
    raise typer.Exit(1 if any(one.state != ANSWERS for one in answer.value) else 0)
