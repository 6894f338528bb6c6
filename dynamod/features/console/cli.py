"""`dynamo console`: the arguments."""

from typing import Annotated

import typer

from dynamod.cli.options import Socket, examples

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "console",
    short_help="Show the console of a daemon in a browser",
    rich_help_panel="Look",
    epilog=examples("dynamo console", "dynamo console --port 8700", "dynamo console --no-browser"),
)
def console(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="port at localhost; 0: a free one")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
    socket: Socket = None,
) -> None:
    """Serve the console at localhost until Ctrl-C, for the holder of the printed address: logs and changes, too."""
    from dynamod.cli.client import Control

    from .alone import run

    raise typer.Exit(run(str(Control(socket).path()), port, browser=browser))
