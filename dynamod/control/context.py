"""What the function that answers a command gets: the node, what names mean, and questions to the processes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dynamod.daemon.process import ProcessRecord

from .names import Names

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

ASK = 3.0
"""Seconds that a process has to answer a question."""
GLANCE = 1.0
"""Seconds for the answer when a command asks every second."""

UNASKED = "unknown command"
"""What a process says that does not know a question."""


class CommandContext:
    """Of all commands of a node."""

    def __init__(self, node: "Node") -> None:
        self.node, self.names = node, Names(node.graphs)

    async def ask(
        self, question: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = ASK
    ) -> dict[ProcessRecord, Any]:
        """What each process that is responsive answers, or the exception that says why it does not."""
        processes = [process for process in self.names.processes() if process.answers]  # others would keep us waiting
        return await self.ask_each(processes, question, arguments, timeout=timeout)

    async def ask_each(
        self,
        processes: Sequence[ProcessRecord],
        question: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float = ASK,
    ) -> dict[ProcessRecord, Any]:
        """What each process answers within `timeout` seconds, or the exception that says why it does not."""
        given = dict(arguments) if arguments is not None else None
        asked = [process.ask(question, given, timeout=timeout) for process in processes]
        return dict(zip(processes, await asyncio.gather(*asked, return_exceptions=True), strict=True))
