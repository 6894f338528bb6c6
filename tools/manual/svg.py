"""Parts of pictures: colors of light and of dark pages, texts, boxes, arrows. All lengths are pixels."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from xml.sax.saxutils import escape

WIDTH = 720
"""Of every picture: the manual shows it as it is, a phone makes it smaller."""


@dataclass(frozen=True)
class Colors:
    """Colors of one theme. `ours`, `theirs`, `third`: fills with their softer kin; `alarm`: something ends."""

    text: str
    quiet: str
    ours: str
    ours_soft: str
    theirs: str
    theirs_soft: str
    third: str
    alarm: str


LIGHT = Colors("#1f2328", "#59636e", "#0969da", "#80bfff", "#818b98", "#c8cfd6", "#bf8700", "#cf222e")
DARK = Colors("#e6edf3", "#9198a1", "#4493f8", "#1f4f8f", "#767e88", "#454c54", "#d29922", "#f85149")


def picture(height: int, parts: Iterable[str], note: str, title: str = "") -> str:
    """An SVG without a background. `note`: what it is made from; `title`: its text for readers who do not see it."""
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="13">'
    titles = [f"<title>{escape(title)}</title>"] if title else []
    return (
        "\n".join([head, *titles, f"<!-- Made by `python -m tools.manual` from {note}. -->", *parts, "</svg>"]) + "\n"
    )


def both(name: str, draw: Callable[[Colors], str]) -> dict[str, Callable[[], str]]:
    """The two files of a picture below `docs/`, each with the function that makes it."""
    themes = {"light": LIGHT, "dark": DARK}
    return {f"images/{name}-{theme}.svg": partial(draw, colors) for theme, colors in themes.items()}


def text(
    left: float, base: float, words: str, color: str, *, bold: bool = False, anchor: str = "", size: int = 0
) -> str:
    """A line of text. `anchor`: `middle` or `end` of the text is at `left`."""
    more = ' font-weight="600"' if bold else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    more += f' font-size="{size}"' if size else ""
    return f'<text x="{left:g}" y="{base:g}" fill="{color}"{more}>{escape(words)}</text>'


def bar(left: float, top: float, width: float, height: float, color: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="{color}"/>'


def box(
    left: float, top: float, width: float, height: float, color: str, *, round_: int = 4, dashed: bool = False
) -> str:
    """An outline."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    size = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="{round_}"'
    return f'<rect {size} fill="none" stroke="{color}"{dash}/>'


def line(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    """A straight line."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{color}"{dash} fill="none"/>'


def arrow(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    """A horizontal or vertical line with a head at its end."""
    if y1 == y2:
        back = x2 - 7 if x2 > x1 else x2 + 7
        head = f"M{x2:g} {y2:g}L{back:g} {y2 - 4:g}L{back:g} {y2 + 4:g}Z"
    else:
        back = y2 - 7 if y2 > y1 else y2 + 7
        head = f"M{x2:g} {y2:g}L{x2 - 4:g} {back:g}L{x2 + 4:g} {back:g}Z"
    return line(x1, y1, x2, y2, color) + f'<path d="{head}" fill="{color}"/>'
