"""`dynamo doctor`: what is wrong here, and how to mend it; and where the memory of the daemon's processes is."""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dynamod.cli.ask import ask
from dynamod.cli.options import Form, Output, Socket, examples
from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from .checks import Finding

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}

app = typer.Typer(
    epilog=examples("dynamo doctor", "dynamo doctor --port 9000 --output json", "dynamo doctor memory"),
    short_help="Look for problems of this machine, with advice",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.info.rich_help_panel = "Look"  # as an argument typer 0.29 loses it


@app.callback()
def doctor(
    context: typer.Context,
    port: Annotated[
        list[int] | None, typer.Option("--port", "-p", min=1, max=65535, help="of a frontend (default 8000, 8080)")
    ] = None,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Look at limits, sockets, ports, brokers, clocks, workers and tokenizers; say how to mend what is wrong."""
    if context.invoked_subcommand is not None:
        given = {"--port": port, "--socket": socket, "--output": None if output is Form.TEXT else output}
        if flags := [flag for flag, value in given.items() if value is not None]:
            text = f"{flags[0]} stands before {context.invoked_subcommand} and has no effect there"
            raise UserError(text, f"write flags of {context.invoked_subcommand} after it")
        return
    import asyncio  # help is quick without

    findings = asyncio.run(_examine(socket, port or (8000, 8080), output))
    states = [finding.state for finding in findings]
    if output is Form.JSON:
        from msgspec import to_builtins

        print(json.dumps(to_builtins(findings), indent=2))
    else:
        print(f"{len(findings)} checks: {states.count('fail')} failed, {states.count('warn')} to look at")
    raise typer.Exit(1 if "fail" in states else 0)


@app.command(epilog=examples("dynamo doctor memory", "dynamo doctor memory --output json"))
def memory(socket: Socket = None, output: Output = Form.TEXT) -> None:
    """Show the memory of the daemon and its processes, and what their bounded structures hold."""
    from dynamod.extension.command import NoArguments

    from .commands import MEMORY
    from .memory import memory as form

    ask(MEMORY, NoArguments(), form, socket, output)


async def _examine(socket: str | None, ports: Sequence[int], form: Form) -> "list[Finding]":
    from .checks import examine

    findings: list[Finding] = []
    async for finding in examine(socket, ports, os.environ):
        findings.append(finding)
        if form is Form.TEXT:
            print(f"{MARKS[finding.state]} {finding.check}: {finding.found}", flush=True)
            if finding.mend:
                print(f"       {finding.mend}")
    return findings
