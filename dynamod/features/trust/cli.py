"""`dynamo trust`: the arguments."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dynamod.cli.ask import ask
from dynamod.cli.options import Form, Output, Socket, examples

app = typer.Typer(
    help="The cluster secret: whether nodes know each other.",
    short_help="Show and change whether nodes know each other",
    epilog=examples("dynamo trust new cluster.secret", "dynamo trust show", "dynamo trust set require"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.info.rich_help_panel = "Look"  # as an argument typer 0.29 loses it


@app.command(epilog=examples("dynamo trust show", "dynamo trust show --output json"))
def show(socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Show mode and secrets of this node (by digests that do not reveal them), and what was not signed right."""
    from dynamod.extension.command import NoArguments

    from .commands import TRUST
    from .show import state

    ask(TRUST, NoArguments(), state, socket, output)


@app.command("set", epilog=examples("dynamo trust set accept", "dynamo trust set require"))
def set_mode(
    mode: Annotated[Literal["off", "accept", "require"], typer.Argument(help="what holds from now on")],
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Change the mode of this node until its daemon ends; no stream is cut. DYNAMOD_TRUST says that of the next start.

    off signs and checks nothing. accept signs, and takes and counts what others do not sign. require takes what is
    signed. All nodes have to accept before the first one requires.
    """
    from .commands import SET_TRUST, SetTrustArguments
    from .show import state

    ask(SET_TRUST, SetTrustArguments(mode=mode), state, socket, output)


@app.command(epilog=examples("dynamo trust reread"))
def reread(socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Read the file with the secret again; no stream is cut."""
    from .commands import SET_TRUST, SetTrustArguments
    from .show import state

    ask(SET_TRUST, SetTrustArguments(reread=True), state, socket, output)


@app.command(epilog=examples("dynamo trust new /etc/dynamod/cluster.secret"))
def new(file: Annotated[Path, typer.Argument(help="file to write, mode 0600", metavar="FILE")]) -> None:
    """Write a new random secret. A file that is there keeps its secret, which signs; the new one is the second."""
    import secrets

    from .secret import SECRET_FILE, write_new

    before = write_new(file.absolute(), secrets.token_hex(32))
    if before:
        print(f"{file} has a second secret, which is taken and does not sign yet.")
        print(
            "Give all nodes this file, then exchange its two lines, then remove the old one:"
            " dynamo trust reread on each node each time."
        )
    else:
        print(f"{file} has a new secret. Give all nodes this file, and their daemons {SECRET_FILE}={file.absolute()}")
