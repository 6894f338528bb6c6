"""Charts of measurements: tables of pages of the manual as bars, for light and for dark pages."""

import re
from dataclasses import dataclass
from pathlib import Path

from .svg import Colors, bar, picture, text

SOURCE = Path(__file__).parents[2] / "docs/explanation/comparison.md"
GATEWAYS = Path(__file__).parents[2] / "docs/explanation/performance.md"
BAR, ROW, TOP = 14, 62, 44
"""Pixels: the height of a bar, of a measure, and of what is above the first measure."""
LONGEST = 400
"""Pixels of the longest bar of a measure. Each measure has a scale of its own."""

NAMES, CUT = 140, 420
"""Pixels: left of the bars of gateways, and their longest bar that is not cut."""


@dataclass(frozen=True)
class Measure:
    """A row of the table: what was measured, NVIDIA Dynamo's value and dynamod's, as texts."""

    what: str
    theirs: str
    ours: str


def measures(page: str) -> list[Measure]:
    """The rows of the table. Raises ValueError for a page without the table."""
    return [Measure(what, theirs, ours) for what, theirs, ours in _table(page, "measure")]


def _table(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose first column has this title."""
    found = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"the page has no table of {first}s")
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


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


def gateways(colors: Colors) -> str:
    """CPU time of gateways, per request and per streamed token. A bar that is cut has a light end."""
    table = _table(GATEWAYS.read_text(encoding="utf-8"), "gateway")
    parts = [text(0, 18, "CPU time of a gateway; shorter is better", colors.quiet)]
    top = TOP - 8
    for column, title in ((1, "per request"), (2, "per streamed token")):
        parts.append(text(0, top + 10, title, colors.text, bold=True))
        top += 20
        amounts = sorted(bounds(row[column])[0] for row in table)
        scale = CUT / amounts[-2]  # else nothing could be seen beside the largest
        for row in table:
            name, length = row[0], bounds(row[column])[0] * scale
            color = colors.ours if name.startswith("dynamod") else colors.theirs
            parts.append(text(0, top + 11, name, colors.text))
            parts.append(bar(NAMES, top, round(min(length, CUT)), BAR, color))
            if length > CUT + 1:
                soft = colors.ours_soft if color == colors.ours else colors.theirs_soft
                parts.append(bar(NAMES + CUT, top, 2 * BAR, BAR, soft))
            end = NAMES + round(min(length, CUT + 2 * BAR))
            parts.append(text(end + 8, top + 11, row[column], colors.quiet))
            top += BAR + 8
        top += 12
    return picture(top, parts, "docs/explanation/performance.md", "CPU time of gateways per request and per token")


def _bars(top: int, value: str, scale: float, colors: tuple[str, str], ink: str) -> str:
    low, high = (round(bound * scale) for bound in bounds(value))
    soft = bar(low, top, high - low, BAR, colors[1]) if high > low else ""
    return bar(0, top, low, BAR, colors[0]) + soft + text(high + 8, top + 11, value, ink)


def _square(left: int, color: str) -> str:
    return bar(left, 7, 13, 13, color)
