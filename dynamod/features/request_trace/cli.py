"""`dynamo trace`: what can be made of a request trace."""

from pathlib import Path
from typing import Annotated

import typer

from dynamod.cli.options import examples
from dynamod.message.errors import UserError

app = typer.Typer(
    help="Make other forms of a request trace.",
    short_help="Make other forms of a request trace",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _trace() -> None:
    """Make other forms of a request trace."""


@app.command("perfetto", epilog=examples("dynamo trace perfetto /tmp/dynamo-request-trace.*.jsonl.gz --out trace.json"))
def perfetto(
    files: Annotated[list[str], typer.Argument(help="files of a request trace, packed or not")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="file to write")] = "trace.json",
) -> None:
    """Write the requests as a timeline for https://ui.perfetto.dev (JSON in Chrome's trace format)."""
    import json

    from .perfetto import timeline
    from .rows import read_rows

    found = timeline(read_rows([Path(one).expanduser() for one in files]))
    try:
        Path(out).expanduser().write_text(json.dumps(found) + "\n")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}", "name another file") from None
    print(f"{out}: {sum(one['ph'] == 'X' for one in found['traceEvents'])} slices")
