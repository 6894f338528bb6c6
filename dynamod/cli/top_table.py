"""`dynamo top`: rows to cells, and which columns fit a width."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tables import duration
from .top_rows import ProcessRow, Top, WorkerFacts

GAP = 2
"""Characters between columns."""
ALWAYS = 100


@dataclass(frozen=True)
class Column:
    """`cell`: its text of a ProcessRow. `keep`: the lowest goes first when the terminal is too narrow, ALWAYS never."""

    title: str
    cell: Callable[[Any], str]
    keep: int
    right: bool = True


@dataclass(frozen=True)
class Section:
    """Rows of a kind under their own columns."""

    columns: Sequence[Column]
    rows: Sequence[ProcessRow]

    def cells(self) -> list[list[str]]:
        """Text by row and column."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]


def sections(view: Top, width: int | None = None) -> list[Section]:
    """Frontends, then workers, then the rest; of each the columns that fit `width`."""
    kinds = [
        (INGRESS, [row for row in view.processes if row.ingress is not None]),
        (WORKER, [row for row in view.processes if row.worker is not None]),
        ((), [row for row in view.processes if row.ingress is None and row.worker is None]),
    ]
    found = [Section((*BASE, *own), rows) for own, rows in kinds if rows]
    if width is None:
        return found
    wide = widths(found)
    return [Section(_fitting(part.columns, wide, width), part.rows) for part in found]


def _fitting(columns: Sequence[Column], wide: Mapping[str, int], width: int) -> Sequence[Column]:
    """Without those that are kept least; some are kept always."""
    while sum(wide[one.title] + GAP for one in columns) - GAP > width:
        last = min(columns, key=lambda column: column.keep)
        if last.keep >= ALWAYS:
            break
        columns = [one for one in columns if one is not last]
    return columns


def widths(parts: Iterable[Section]) -> dict[str, int]:
    """The width of each column, so that columns of the same name stand below each other."""
    found: dict[str, int] = {}
    for part in parts:
        for column, *cells in zip(part.columns, *part.cells(), strict=True):
            found[column.title] = max(len(column.title), found.get(column.title, 0), *map(len, cells))
    return found


def state(row: ProcessRow) -> str:
    """`Ready`; `Ready?` of a process that does not answer."""
    return row.state if row.answers or row.state != "Ready" else f"{row.state}?"


def number(value: float | None) -> str:
    """`-`, `0.3`, `12`, `3400`, `1.2M`."""
    if value is None:
        return "-"
    if value >= 100_000:
        return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value / 1e3:.0f}k"
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"


def size(value: int | None) -> str:
    """`-`, `87M`, `1.4G`."""
    if value is None:
        return "-"
    return f"{value / 2**30:.1f}G" if value >= 2**30 else f"{value / 2**20:.0f}M"


def age(seconds: float | None) -> str:
    """`-`, `7s`, `12m`, `5h`, `3d`."""
    return "-" if seconds is None else duration(seconds, "smhd")


def both(low: float | None, high: float | None) -> str:
    """Two times in milliseconds: `3.4/21`."""
    if low is None or high is None:
        return "-"
    return f"{number(low * 1000)}/{number(high * 1000)}"


def blocks(worker: WorkerFacts) -> str:
    """`812/4096`."""
    return "-" if not worker.total_blocks else f"{worker.active_blocks or 0}/{worker.total_blocks}"


def share(value: float | None) -> str:
    """`-`, `64%`."""
    return "-" if value is None else f"{value:.0%}"


BASE = (
    Column("PROCESS", lambda row: row.process, ALWAYS, right=False),
    Column("STATE", state, ALWAYS, right=False),
    Column("PID", lambda row: str(row.pid or "-"), 5),
    Column("INSTANCE", lambda row: row.instance or "-", 0, right=False),
    Column("RESTARTS", lambda row: str(row.restarts), 2),
    Column("UPTIME", lambda row: age(row.uptime), 3),
    Column("CPU%", lambda row: number(row.cpu), 9),
    Column("RSS", lambda row: size(row.rss), 6),
    Column("MAIL", lambda row: str(row.mailbox if row.mailbox is not None else "-"), 1),
)
INGRESS = (
    Column("FLIGHTS", lambda row: str(row.ingress.in_flight), ALWAYS),
    Column("QUEUED", lambda row: str(row.ingress.queued), 4),
    Column("REQ/S", lambda row: number(row.ingress.requests_per_second), ALWAYS),
    Column("TTFT MS 50/99", lambda row: both(row.ingress.ttft_p50, row.ingress.ttft_p99), 11),
    Column("ITL MS 50/99", lambda row: both(row.ingress.itl_p50, row.ingress.itl_p99), 10),
)
"""Of rows that have `ingress`."""
WORKER = (
    Column("RUN", lambda row: str(row.worker.running), ALWAYS),
    Column("WAIT", lambda row: str(row.worker.waiting), 12),
    Column("BLOCKS", lambda row: blocks(row.worker), 11),
    Column("HIT", lambda row: share(row.worker.hit_rate), 7),
    Column("TOKENS/S", lambda row: number(row.worker.tokens_per_second), ALWAYS),
)
"""Of rows that have `worker`."""
