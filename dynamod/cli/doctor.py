"""`dynamo doctor`: what is wrong here, and how to mend it."""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Form, Output, Socket

if TYPE_CHECKING:
    from .checks import Finding

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def doctor(
    port: Annotated[
        list[int] | None, typer.Option("--port", "-p", min=1, max=65535, help="of a frontend (default 8000, 8080)")
    ] = None,
    socket: Socket = None,
    output: Output = Form.TEXT,
) -> None:
    """Look at limits, sockets, ports, brokers, clocks, workers and tokenizers; say how to mend what is wrong."""
    import asyncio  # help is quick without

    findings = asyncio.run(_examine(socket, port or (8000, 8080), output))
    states = [finding.state for finding in findings]
    if output is Form.JSON:
        from msgspec import to_builtins

        print(json.dumps(to_builtins(findings), indent=2))
    else:
        print(f"{len(findings)} checks: {states.count('fail')} failed, {states.count('warn')} to look at")
    raise typer.Exit(1 if "fail" in states else 0)


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
