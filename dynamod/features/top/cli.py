"""`dynamo top`: the arguments."""

from typing import Annotated

import typer

from dynamod.cli.options import AllNodes, Form, Output, Socket, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "top",
    short_help="Watch CPU, memory, requests and KV blocks per process",
    rich_help_panel="Look",
    epilog=examples("dynamo top", "dynamo top --interval 5", "dynamo top --all", "dynamo top --once --output json"),
)
def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, max=3600, help="seconds between looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one table (of two looks) and exit")] = False,
    all_nodes: AllNodes = False,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Watch processes: CPU, memory, requests, latencies, engines and KV blocks; q ends. Without a terminal: once."""
    from dynamod.cli.client import Control

    from .sources import AllNodes as EveryNode
    from .sources import OneNode
    from .view import run

    control = Control(socket)
    if all_nodes:
        code = run(EveryNode(control), interval, once=once, output=output)
    else:
        code = run(OneNode(control), interval, once=once, output=output)
    raise typer.Exit(code)
