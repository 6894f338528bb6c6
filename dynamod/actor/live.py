"""The cells of the actors that run, by path, and the reasons of the last ends."""

from typing import TYPE_CHECKING

from .errors import Reason

if TYPE_CHECKING:
    from .cell import Cell

REASONS = 64
"""Ends whose reasons are kept."""


class LiveCells:
    """`cells`: by path. `reasons`: by path and incarnation."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.reasons: dict[tuple[str, int | None], Reason] = {}

    def register(self, cell: "Cell") -> None:
        """Make a new incarnation reachable."""
        self.cells[cell.ref.path] = cell

    def unregister(self, cell: "Cell") -> None:
        """Forget a dead incarnation, unless a later one has taken the path."""
        if cell.reason is not None:
            self.reasons[(cell.ref.path, cell.ref.incarnation)] = cell.reason
            while len(self.reasons) > REASONS:
                del self.reasons[next(iter(self.reasons))]
        if self.cells.get(cell.ref.path) is cell:
            del self.cells[cell.ref.path]
