"""What answers `top` in the daemon."""

import os
import time
from typing import TYPE_CHECKING

from dynamod import __version__
from dynamod.extension.command import CommandHandler, NoArguments
from dynamod.observe.vitals import vitals

from .commands import TOP, Look

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext


async def top(context: "CommandContext", _arguments: NoArguments) -> Look:
    """All of one look for `dynamo top`."""
    from dynamod.control.context import GLANCE

    node = context.node
    answers = await context.ask_each(context.names.processes(), "statistics", timeout=GLANCE)
    rows = node.graphs.rows()
    return Look(
        __version__,
        node.name,
        os.getpid(),
        uptime=time.monotonic() - node.life.born,
        at=time.monotonic(),
        rows=rows,
        instances={str(pid): f"{lease:x}" for pid, lease in node.link.leases().items()},
        vitals=vitals(row.pid for row in rows if row.pid),
        statistics={process.name: value for process, value in answers.items() if isinstance(value, dict)},
    )


HANDLERS = (CommandHandler(TOP, top),)
