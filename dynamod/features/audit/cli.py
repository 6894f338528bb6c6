"""`dynamo audit`: the arguments, and entries as text."""

import json
import sys
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dynamod.cli.options import AllNodes, Form, Output, Socket, examples
from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from .commands import AuditArguments
    from .reading import Entry

app = typer.Typer(rich_markup_mode=None)


class Kind(StrEnum):
    """Kinds of entries."""

    REQUEST = "request"
    COMMAND = "command"


@app.command(
    "audit",
    short_help="Show the requests and changes of the audit log",
    rich_help_panel="Look",
    epilog=examples(
        "dynamo audit --since 1h --key team-a",
        "dynamo audit --status 4xx --model sample --output json",
        "dynamo audit --kind command --since 7d --all",
    ),
)
def audit(
    since: Annotated[str, typer.Option(metavar="TIME", help="not before: 15m, 1h, 2d ago, or 2026-01-31T12:00")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="before, as --since")] = "",
    key: Annotated[str, typer.Option(metavar="NAME", help="only requests with the key of this name")] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="only requests for this model")] = "",
    status: Annotated[str, typer.Option(metavar="CODE", help="only this status: 404, or a class like 4xx")] = "",
    kind: Annotated[Kind | None, typer.Option(help="only requests, or only commands")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="how many of the last entries; 0: all")] = 100,
    folder: Annotated[str, typer.Option(metavar="FOLDER", help="folder of the files (default: the daemon's)")] = "",
    all_nodes: AllNodes = False,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Show the requests, and the commands that changed something, of this node or of all, with their outcome.

    The frontend writes them where its settings have `audit: true`. The order is that of their ends. Exit code 1: a node
    does not answer.
    """
    from .commands import AuditArguments
    from .reading import Files, wanted_of

    asked = AuditArguments(since=since, until=until, key=key, model=model, status=status, kind=kind or "")
    wanted = wanted_of(asked, datetime.now(UTC))
    if all_nodes:
        if folder:
            raise UserError("--folder names files of this node", "leave out --folder, or --all")
        raise typer.Exit(_everywhere(socket, asked, lines, output))
    folders = [Path(folder)] if folder else _folders(socket)
    files = Files(folders)
    if not files.names():
        where = ", ".join(map(str, folders))
        raise UserError(f"there are no audit files in {where}", "a frontend with audit: true writes them", exit_code=1)
    entries: Iterable[Entry] = files.entries(wanted)
    _print(deque(entries, maxlen=lines) if lines else entries, output)
    if files.unreadable:
        print(f"{files.unreadable} lines could not be read", file=sys.stderr)


def _print(entries: "Iterable[Entry]", output: Form) -> None:
    for entry in entries:
        print(as_json(entry) if output is Form.JSON else as_text(entry))


def _everywhere(socket: str | None, asked: "AuditArguments", lines: int, output: Form) -> int:
    """Print the last entries of all nodes together; returns the exit code. Raises UserError."""
    from dynamod.cli.client import Control
    from dynamod.extension.installed import require

    from .commands import AUDIT, MOST_ELSEWHERE, Audited
    from .reading import merged, told

    if not 1 <= lines <= MOST_ELSEWHERE:
        raise UserError(f"--lines is {lines}", f"with --all give a number from 1 to {MOST_ELSEWHERE}")
    require("cluster", "--all")
    from dynamod.features.cluster.commands import read
    from dynamod.features.cluster.everywhere import answers

    arguments = msgspec.to_builtins(msgspec.structs.replace(asked, lines=lines))
    known = [read(one, Audited) for one in answers(Control(socket), AUDIT.name, **arguments)]
    sources = [told(said.entries, one.node) for one, said in known if said is not None]
    _print(deque(merged(sources), maxlen=lines), output)
    for one, said in known:
        if said is None:
            print(f"node {one.node}: {one.state}: {one.why}", file=sys.stderr)
        elif said.unreadable:
            print(f"node {one.node}: {said.unreadable} lines could not be read", file=sys.stderr)
    return 1 if any(said is None for _, said in known) else 0


def _folders(socket: str | None) -> list[Path]:
    """The folders of the graphs that run; the default one where no daemon, or no graph with an audit log, runs."""
    from dynamod.cli.client import Control

    from .commands import AUDIT, AuditArguments
    from .settings import default_folder

    try:
        found = Control(socket).ask(AUDIT, AuditArguments()).value.folders
    except UserError:
        if socket is not None:
            raise
        found = []
    return list(map(Path, found)) or [default_folder()]


def as_json(entry: "Entry") -> str:
    """An entry as it stands in its file."""
    return json.dumps({**entry, "time": _stamp(entry["time"])}, ensure_ascii=False)


def as_text(entry: "Entry") -> str:
    """An entry as one line for people."""
    if entry["kind"] == "dropped":
        return f"{_stamp(entry['time'])} {entry.get('lines', '?')} lines are missing here: they could not be written"
    if entry["kind"] == "command":
        words = [str(entry.get("status", "")), "command", str(entry.get("command", ""))]
        shown = {"arguments": json.dumps(entry.get("arguments", {}), ensure_ascii=False)}
    else:
        words = [str(entry.get(name, "")) for name in ("status", "method", "path")]
        tokens = f"{entry.get('prompt_tokens', 0)}+{entry.get('completion_tokens', 0)}"
        shown = {"tokens": tokens, "workers": ",".join(entry.get("workers", ())), "notes": _notes(entry)}
    who = ("model", "key", "client", "user", "pid", "sender")
    names = (*who, "error", "finish", "migrations", "first_ms", "duration_ms", "node", "process", "id")
    shown |= {name: str(entry[name]) for name in names if entry.get(name)}
    fields = [f"{name}={_printable(text)}" for name, text in shown.items() if text not in ("", "0+0")]
    return " ".join([_stamp(entry["time"]), *map(_printable, words), *fields])


def _notes(entry: "Entry") -> str:
    return ",".join(f"{name}:{text}" for name, text in entry.get("notes", {}).items())


def _printable(text: str) -> str:
    """Text that cannot change the terminal or begin another line."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
