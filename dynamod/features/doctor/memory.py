"""`dynamo doctor memory` on a terminal: a table of processes, and one of what their bounded structures hold."""

from collections.abc import Sequence

from dynamod.cli.tables import table
from dynamod.message.bounded import Bounded

from .commands import ProcessMemory

MIB = 1 << 20


def memory(found: Sequence[ProcessMemory], _width: int | None = None) -> str:
    """The tables. Structures that hold nothing are only counted."""
    processes = [
        [one.process, str(one.pid), _size(one.rss), "-" if one.pss is None else _size(one.pss), _size(one.descendants)]
        for one in found
    ]
    pairs = [(one.process, held) for one in found for held in one.bounded]
    rows = [_row(process, held) for process, held in pairs if held.count]
    parts = [table(["PROCESS", "PID", "RSS", "PSS", "DESCENDANTS"], processes)]
    if rows:
        parts.append(table(["PROCESS", "STRUCTURE", "OF", "HOLDS", "BOUND", "FULL"], rows))
    if empty := len(pairs) - len(rows):
        parts.append(f"{empty} further structures are empty; --output json lists them")
    return "\n".join([*parts, *(f"{one.process}: {one.error}" for one in found if one.error)])


def _row(process: str, held: Bounded) -> list[str]:
    share = f"{held.count / held.bound:.1%}" if held.bound else "-"
    if held.unit == "bytes":
        return [process, held.name, held.of, _size(held.count), _size(held.bound), share]
    return [process, held.name, held.of, f"{held.count:,}", f"{held.bound:,} {held.unit}", share]


def _size(count: int) -> str:
    return f"{count / MIB:,.1f} MiB"
