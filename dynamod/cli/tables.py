"""Plain text tables, in the form that the original prints."""

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
