"""The chart of the README: the table of docs/explanation/comparison.md as bars, for light and for dark pages."""

import re
from dataclasses import dataclass
from pathlib import Path

from .svg import Colors, bar, picture, text

SOURCE = Path(__file__).parents[2] / "docs/explanation/comparison.md"
BAR, ROW, TOP = 14, 62, 44
"""Pixels: the height of a bar, of a measure, and of what is above the first measure."""
LONGEST = 400
"""Pixels of the longest bar of a measure. Each measure has a scale of its own."""


@dataclass(frozen=True)
class Measure:
    """A row of the table: what was measured, NVIDIA Dynamo's value and dynamod's, as texts."""

    what: str
    theirs: str
    ours: str


def measures(page: str) -> list[Measure]:
    """The rows of the table. Raises ValueError for a page without the table."""
    found = re.search(r"^\| measure \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"{SOURCE} has no table of measures")
    rows = [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in found[1].splitlines()]
    return [Measure(what, theirs, ours) for what, theirs, ours in rows]


def bounds(value: str) -> tuple[float, float]:
    """The least and the largest number of a value: `31 to 36 µs`, `0.6 s`, `150 MB (+ 73 MB for ...)`."""
    first, *others = re.findall(r"(\d+(?:\.\d+)?) (?=to|µs|ms|s|MB)", value)
    low = float(first)
    if not others:
        return low, low
    return low, low + float(others[0]) if "+" in value else float(others[0])


def draw(colors: Colors) -> str:
    """Two bars per measure. Shorter bars are better in every row."""
    parts = [
        _square(0, colors.ours) + text(20, 18, "dynamod", colors.text, bold=True),
        _square(100, colors.theirs) + text(120, 18, "NVIDIA Dynamo 1.6.1", colors.text),
        text(280, 18, "less is better; a light end shows the range", colors.quiet),
    ]
    rows = measures(SOURCE.read_text(encoding="utf-8"))
    for place, row in enumerate(rows):
        top = TOP + ROW * place
        scale = LONGEST / max(bounds(row.ours)[1], bounds(row.theirs)[1])
        parts.append(text(0, top + 10, row.what, colors.text))
        parts.append(_bars(top + 17, row.ours, scale, (colors.ours, colors.ours_soft), colors.text))
        parts.append(_bars(top + 17 + BAR + 2, row.theirs, scale, (colors.theirs, colors.theirs_soft), colors.quiet))
    return picture(TOP + ROW * len(rows), parts, "docs/explanation/comparison.md")


def _bars(top: int, value: str, scale: float, colors: tuple[str, str], ink: str) -> str:
    low, high = (round(bound * scale) for bound in bounds(value))
    soft = bar(low, top, high - low, BAR, colors[1]) if high > low else ""
    return bar(0, top, low, BAR, colors[0]) + soft + text(high + 8, top + 11, value, ink)


def _square(left: int, color: str) -> str:
    return bar(left, 7, 13, 13, color)
