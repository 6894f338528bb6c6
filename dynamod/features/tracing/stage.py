"""The stage of a traced choice: each send to a worker has a span of its own, of which the worker learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dynamod.message.worker import Chat, Embed, Generate, Request
from dynamod.migration.attempt import Break
from dynamod.migration.stages import Stage, Try
from dynamod.router.placement import Placement

if TYPE_CHECKING:
    from .context import TraceContext


class TraceStage(Stage):
    """Tells the worker of each attempt, and the one that computes the prompt for it, the span of the attempt."""

    order = -10  # before the stage that has the prompt computed elsewhere

    def __init__(self, trace: TraceContext, choice: int) -> None:
        self._trace, self._choice = trace, choice

    async def attempt(self, placement: Placement, request: Request, proceed: Try) -> Break | None:
        """Send the request with headers of its trace."""
        if isinstance(request, Generate | Chat | Embed):
            request = msgspec.structs.replace(request, trace=self._trace.passed(self._choice))
        return await proceed(request)
