"""Plain text tables, in the form that NVIDIA Dynamo prints; durations in them."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A boxed table.

    +------+-------+
    | HEAD | ...   |
    +------+-------+
    """
    widths = [max(len(str(cell)) for cell in column) for column in zip(head, *rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(cells: Sequence[str]) -> str:
        return "|" + "|".join(f" {cell!s:<{width}} " for cell, width in zip(cells, widths, strict=True)) + "|"

    return "\n".join([rule, line(head), rule, *(line(row) for row in rows), rule])


def duration(seconds: float, units: Sequence[str] = (" s", " min", " h", " d")) -> str:
    """`3 s`, `12 min`, `5 h`, `3 d`."""
    for limit, unit, size in zip((120, 7200, 172800), units, (1, 60, 3600), strict=False):
        if seconds < limit:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}{units[-1]}"
