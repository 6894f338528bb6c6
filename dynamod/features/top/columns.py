"""`dynamo top`: rows to cells, and which columns fit a width."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from dynamod.cli.tables import duration

from .rows import ProcessRow, TierFacts, Top

GAP = 2
"""Characters between columns."""
ALWAYS = 100


@dataclass(frozen=True)
class Column:
    """`field`: of a ProcessRow, or two that are shown as one; `form`: its text, `-` when it is not known.

    `keep`: the column with the lowest number goes first when the terminal is too narrow, ALWAYS never. `rare`: it is
    shown where a row has something for it.
    """

    title: str
    field: str
    form: Callable[..., str]
    keep: int
    right: bool = True
    rare: bool = False

    def cell(self, row: ProcessRow) -> str:
        """The text of a row."""
        values = [attrgetter(field)(row) for field in self.field.split()]
        return "-" if None in values else self.form(*values)


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
    found = [Section([one for one in (*BASE, *own) if _shown(one, rows)], rows) for own, rows in kinds if rows]
    if width is None:
        return found
    wide = widths(found)
    return [Section(_fitting(part.columns, wide, width), part.rows) for part in found]


def _shown(column: Column, rows: Sequence[ProcessRow]) -> bool:
    return not column.rare or any(column.cell(row) != "-" for row in rows)


def _fitting(columns: Sequence[Column], wide: Mapping[str, int], width: int) -> Sequence[Column]:
    """Without the columns of the lowest rank; some columns always stay."""
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


def number(value: float) -> str:
    """`0.3`, `12`, `3400`, `1.2M`."""
    if value >= 100_000:
        return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value / 1e3:.0f}k"
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"


def some(value: float) -> str:
    """A number, `-` for none."""
    return number(value) if value else "-"


def size(value: int) -> str:
    """`87M`, `1.4G`."""
    return f"{value / 2**30:.1f}G" if value >= 2**30 else f"{value / 2**20:.0f}M"


def age(seconds: float) -> str:
    """`7s`, `12m`, `5h`, `3d`."""
    return duration(seconds, "smhd")


def both(low: float, high: float) -> str:
    """Two times in milliseconds: `3.4/21`."""
    return f"{number(low * 1000)}/{number(high * 1000)}"


def tier(facts: TierFacts) -> str:
    """Blocks, their bytes, hits: `93/12M/186`."""
    return f"{facts.blocks}/{size(facts.bytes)}/{facts.hits}"


def _or_dash(value: object) -> str:
    return str(value or "-")


BASE = (
    Column("PROCESS", "process", str, ALWAYS, right=False),
    Column("STATE", "shown_state", str, ALWAYS, right=False),
    Column("PID", "pid", _or_dash, 5),
    Column("INSTANCE", "instance", _or_dash, 0, right=False),
    Column("RESTARTS", "restarts", str, 2),
    Column("UPTIME", "uptime", age, 3),
    Column("CPU%", "cpu", number, 9),
    Column("RSS", "rss", size, 6),
    Column("MAIL", "mailbox", str, 1),
)
INGRESS = (
    Column("FLIGHTS", "ingress.in_flight", str, ALWAYS),
    Column("QUEUED", "ingress.queued", str, 4),
    Column("REQ/S", "ingress.requests_per_second", number, ALWAYS),
    Column("ERR/S", "ingress.errors_per_second", some, 12, rare=True),
    Column("TTFT MS 50/99", "ingress.ttft_p50 ingress.ttft_p99", both, 11),
    Column("ITL MS 50/99", "ingress.itl_p50 ingress.itl_p99", both, 10),
)
"""Of rows that have `ingress`."""
WORKER = (
    Column("POOL", "worker.pool", _or_dash, 8, right=False, rare=True),
    Column("RUN", "worker.running", str, ALWAYS),
    Column("WAIT", "worker.waiting", str, 12),
    Column("BLOCKS", "worker.active_blocks worker.total_blocks", "{}/{}".format, 11),
    Column("HIT", "worker.hit_rate", "{:.0%}".format, 7),
    Column("SESSIONS", "worker.sessions", str, 8, rare=True),
    Column("HOST N/SIZE/HITS", "worker.host", tier, 7, rare=True),
    Column("DISK N/SIZE/HITS", "worker.disk", tier, 7, rare=True),
    Column("TOKENS/S", "worker.tokens_per_second", number, ALWAYS),
)
"""Of rows that have `worker`. What few deployments have, like pools or tiers of a KV cache, is a rare column."""
