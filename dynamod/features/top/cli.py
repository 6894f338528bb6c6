"""`dynamo top`: the arguments."""

from typing import Annotated

import typer

from dynamod.cli.options import Form, Output, Socket, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "top",
    short_help="Watch CPU, memory, requests and KV blocks per process",
    rich_help_panel="Look",
    epilog=examples("dynamo top", "dynamo top --interval 5", "dynamo top --once --output json"),
)
def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, max=3600, help="seconds between looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one table (of two looks) and exit")] = False,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Watch processes: CPU, memory, requests, latencies, engines and KV blocks; q ends. Without a terminal: once."""
    from dynamod.cli.client import Control

    from .view import run

    raise typer.Exit(run(Control(socket), interval, once=once, output=output))
