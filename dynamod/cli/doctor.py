"""`dynamo doctor`: what is wrong here, and how to mend it."""

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

from .form import Form

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def run(socket: str | None, ports: Sequence[int], form: Form) -> int:
    """Print the findings as they come; 1 when something fails."""
    findings = asyncio.run(_examine(socket, ports, form))
    failed = sum(finding["state"] == "fail" for finding in findings)
    warned = sum(finding["state"] == "warn" for finding in findings)
    if form == Form.JSON:
        print(json.dumps(findings, indent=2))
    else:
        print(f"{len(findings)} checks: {failed} failed, {warned} to look at")
    return 1 if failed else 0


async def _examine(socket: str | None, ports: Sequence[int], form: Form) -> list[dict[str, Any]]:
    import msgspec

    from .checks import examine

    findings: list[dict[str, Any]] = []
    async for finding in examine(socket, ports, os.environ):
        findings.append(msgspec.to_builtins(finding))
        if form == Form.TEXT:
            print(f"{MARKS[finding.state]} {finding.check}: {finding.found}", flush=True)
            if finding.mend:
                print(f"       {finding.mend}")
    return findings
