"""What `dynamo doctor` says of the other nodes."""

import asyncio
from collections.abc import AsyncIterator

from dynamod.cli.client import Control
from dynamod.extension.command import NoArguments
from dynamod.extension.installed import extensions
from dynamod.features.doctor.checks import Finding
from dynamod.message.errors import UserError

from .agreement import differences
from .commands import ANSWERS, NODES
from .nodes import FEATURE


async def checks(explicit: str | None) -> AsyncIterator[Finding]:
    """Compare what must agree between nodes. `explicit`: the path of the control socket, or None."""
    try:
        rows = (await asyncio.to_thread(Control(explicit).ask, NODES, NoArguments())).value
    except UserError as error:
        yield Finding("nodes", "warn", f"the daemon does not tell of other nodes: {error}", error.hint)
        return
    if len(rows) < 2:
        return
    found = differences(rows, [fact for facts in extensions(FEATURE) for fact in facts])
    for one in found:
        yield Finding(one.check, "fail" if one.severe else "warn", one.found, one.mend)
    if not found:
        answering = sum(row.state == ANSWERS for row in rows)
        yield Finding("nodes", "ok", f"{answering} nodes answer and agree in releases, clocks and models")
