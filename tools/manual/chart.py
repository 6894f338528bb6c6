"""The chart of the README: the table of docs/explanation/comparison.md as bars, for light and for dark pages."""

import re
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

SOURCE = Path(__file__).parents[2] / "docs/explanation/comparison.md"
WIDTH, BAR, ROW, TOP = 720, 14, 62, 44
"""Pixels: of the picture, the height of a bar, of a measure, and of what is above the first measure."""
LONGEST = 400
"""Pixels of the longest bar of a measure. Each measure has a scale of its own."""


@dataclass(frozen=True)
class Colors:
    """Colors of one theme; `soft` ends a bar whose value is a range."""

    text: str
    quiet: str
    ours: str
    ours_soft: str
    theirs: str
    theirs_soft: str


LIGHT = Colors("#1f2328", "#59636e", "#0969da", "#80bfff", "#818b98", "#c8cfd6")
DARK = Colors("#e6edf3", "#9198a1", "#4493f8", "#1f4f8f", "#767e88", "#454c54")


@dataclass(frozen=True)
class Measure:
    """A row of the table: what was measured, NVIDIA Dynamo's value and dynamod's, as texts."""

    what: str
    theirs: str
    ours: str


def measures(text: str) -> list[Measure]:
    """The rows of the table. Raises ValueError for a page without the table."""
    found = re.search(r"^\| measure \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
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


def light() -> str:
    """The chart for pages with a light background."""
    return draw(measures(SOURCE.read_text(encoding="utf-8")), LIGHT)


def dark() -> str:
    """The chart for pages with a dark background."""
    return draw(measures(SOURCE.read_text(encoding="utf-8")), DARK)


def draw(rows: list[Measure], colors: Colors) -> str:
    """An SVG without a background. Shorter bars are better in every row."""
    height = TOP + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<!-- Made by `python -m tools.manual` from docs/explanation/comparison.md. -->",
        _square(0, colors.ours) + _text(20, 18, "dynamod", colors.text, bold=True),
        _square(100, colors.theirs) + _text(120, 18, "NVIDIA Dynamo 1.6.1", colors.text),
        _text(280, 18, "less is better; a light end shows the range", colors.quiet),
    ]
    for place, row in enumerate(rows):
        top = TOP + ROW * place
        scale = LONGEST / max(bounds(row.ours)[1], bounds(row.theirs)[1])
        parts.append(_text(0, top + 10, row.what, colors.text))
        parts.append(_bar(top + 17, row.ours, scale, (colors.ours, colors.ours_soft), colors.text))
        parts.append(_bar(top + 17 + BAR + 2, row.theirs, scale, (colors.theirs, colors.theirs_soft), colors.quiet))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(top: int, value: str, scale: float, colors: tuple[str, str], ink: str) -> str:
    low, high = (round(bound * scale) for bound in bounds(value))
    soft = f'<rect x="{low}" y="{top}" width="{high - low}" height="{BAR}" fill="{colors[1]}"/>' if high > low else ""
    solid = f'<rect x="0" y="{top}" width="{low}" height="{BAR}" fill="{colors[0]}"/>'
    return solid + soft + _text(high + 8, top + 11, value, ink)


def _square(left: int, color: str) -> str:
    return f'<rect x="{left}" y="7" width="13" height="13" fill="{color}"/>'


def _text(left: int, base: int, text: str, color: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{left}" y="{base}" fill="{color}"{weight}>{escape(text)}</text>'
