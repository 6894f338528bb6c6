"""Looking into running actors from outside: what each one does, waits for, counts, and holds in its mailbox.

Nothing here goes through the inspected actor, so a hanging one shows as well as an idle one.
"""

import asyncio
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from .cell import Cell
from .statistics import ActorStatistics, ChildStatistics
from .supervisor import Supervisor
from .system import System


@dataclass(frozen=True, slots=True)
class ActorReport:
    """What one actor counts: as the kernel sees it, by its own `statistics()`, and a supervisor's children."""

    kernel: ActorStatistics
    own: msgspec.Struct | None
    children: list[ChildStatistics]


def reports(system: System) -> Iterator[ActorReport]:
    """A report of each live actor, by path."""
    for cell in system.cells():
        children = cell.actor.children() if isinstance(cell.actor, Supervisor) else []
        yield ActorReport(cell.statistics(), cell.actor.statistics(), children)


def stack(task: asyncio.Task[Any]) -> list[str]:
    """Where a suspended task stands: `file:line function`, outermost first, through all that it awaits."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None) or getattr(
            awaited, "ag_frame", None
        )  # fmt: skip
        if isinstance(frame, types.FrameType):
            code = frame.f_code
            lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        following = getattr(awaited, "cr_await", None)
        if following is None:
            following = getattr(awaited, "gi_yieldfrom", None)
        if following is None:
            following = getattr(awaited, "ag_await", None)
        if following is None and not isinstance(frame, types.FrameType):
            lines.append(f"awaiting {type(awaited).__name__}")
        awaited = following
    return lines


def inspect_cell(cell: Cell) -> dict[str, Any]:
    """Everything the kernel knows of one actor, JSON-like."""
    facts: dict[str, Any] = msgspec.to_builtins(cell.statistics())
    tasks = [task for task in (cell.task, *cell.helpers.tasks) if task is not None and not task.done()]
    facts["tasks"] = [{"name": task.get_name(), "stack": stack(task)} for task in tasks]
    facts["details"] = cell.actor.inspection()
    return facts


def inspect_system(system: System, pattern: str = "") -> list[dict[str, Any]]:
    """All actors whose path contains `pattern`, by path."""
    return [inspect_cell(cell) for cell in system.cells() if pattern in cell.ref.path]
