"""The recording of the tutorial "Kill a worker", from `kill.json`, as an SVG that plays once."""

import json
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from .record import FILE

COLUMNS, ROW, CELL, SIZE = 112, 14, 6.2, 10.3
"""Characters per row; pixels: of a row, of a character, of the font."""
MARGIN, HEAD = 12, 22
"""Pixels: left of the text, and of the title of a terminal."""
BACK, BAR, PLAIN, TYPED, WARNING = "#0d1117", "#161b22", "#c9d1d9", "#ffffff", "#e3b341"
STYLE = """\
<style>
text { white-space: pre; font-family: ui-monospace, monospace; opacity: 0; animation: shown 1ms linear forwards }
@keyframes shown { to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { text { opacity: 1; animation: none } }
</style>"""


def recording() -> str:
    """The SVG: one terminal below the other, each text at its second."""
    terminals = json.loads(FILE.read_text(encoding="utf-8"))["terminals"]
    parts, top = list[str](), 0
    width = round(COLUMNS * CELL) + 2 * MARGIN
    for terminal in terminals:
        runs = list(_runs(terminal))
        height = HEAD + ROW * (max(row for _, row, _, _ in runs) + 1) + 10
        parts.append(f'<rect y="{top}" width="{width}" height="{height}" rx="6" fill="{BACK}"/>')
        parts.append(f'<rect y="{top}" width="{width}" height="{HEAD - 4}" rx="6" fill="{BAR}"/>')
        parts.append(f'<text x="{MARGIN}" y="{top + 13}" font-size="{SIZE}" fill="{PLAIN}">{terminal["title"]}</text>')
        parts += [_text(top + HEAD + ROW * run[1] + 10, *run) for run in runs]
        top += height + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">'
    title = "<title>Three terminals: a worker is killed while it answers, and the answer continues.</title>"
    note = "<!-- Made by `python -m tools.manual` from tools/manual/kill.json. -->"
    return "\n".join([head, title, note, STYLE, *parts, "</svg>"]) + "\n"


def _runs(terminal: dict[str, Any]) -> Iterator[tuple[float, int, int, str]]:
    """Second, row, column and text of each run of characters of one row."""
    row = column = 0
    for second, piece in terminal["pieces"]:
        for place, line in enumerate(piece.replace("\r", "").split("\n")):
            if place:
                row, column = row + 1, 0
            while line:
                if column == COLUMNS:
                    row, column = row + 1, 0
                part, line = line[: COLUMNS - column], line[COLUMNS - column :]
                if part.strip():
                    yield second, row, column, part
                column += len(part)


def _text(base: int, second: float, _row: int, column: int, text: str) -> str:
    color = TYPED if text.startswith("$ ") else WARNING if " WARN " in text else PLAIN
    weight = ' font-weight="700"' if color == TYPED else ""
    place = f'x="{MARGIN + column * CELL:g}" y="{base}"'
    place += f' textLength="{len(text) * CELL:g}" lengthAdjust="spacingAndGlyphs"'
    style = f'font-size="{SIZE}" fill="{color}"{weight} style="animation-delay:{second:g}s"'
    return f"<text {place} {style}>{escape(text)}</text>"
