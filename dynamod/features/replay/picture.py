"""A picture of planners in a replay: the front, the load, workers and first tokens over time."""

from collections.abc import Sequence
from html import escape
from itertools import count

from .planned import Planned

WIDTH, HEIGHT, LEFT, TOP, SPACE = 640, 150, 90, 60, 50
"""Of a panel, in pixels."""

BUCKETS = 120
"""Into which the time is divided."""

LATEST = 4.0
"""Seconds at the top of the panels of first tokens."""

STYLE = (
    "text{font:13px sans-serif;fill:#222}.name{font-weight:bold}.title{font-size:16px}"
    "path{fill:none;stroke:#888}polyline{fill:none;stroke:#4a7ebb;stroke-width:2}circle{fill:#4a7ebb}"
)


def draw(results: Sequence[Planned], title: str) -> str:
    """A picture (SVG): the goodput of several, the load, and workers and first tokens of each planner."""
    total = TOP + (2 * len(results) + 1 + (len(results) > 1)) * (HEIGHT + SPACE)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{total}">'
    places = (TOP + place * (HEIGHT + SPACE) for place in count())
    panels = [_front(results, next(places))] if len(results) > 1 else []
    panels.append(_load(results, next(places)))
    for one in results:
        panels += [_workers(results, one, next(places)), _first_tokens(results, one, next(places))]
    return (
        f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="12" y="26" class="title">{escape(title)}</text>{"".join(panels)}</svg>\n'
    )


def _panel(y: float, name: str, up: str, right: str) -> str:
    """Axes with what their ends are."""
    return (
        f'<text x="{LEFT}" y="{y - 8}" class="name">{escape(name)}</text><path d="M{LEFT} {y}v{HEIGHT}h{WIDTH}"/>'
        f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(up)}</text>'
        f'<text x="{LEFT + WIDTH}" y="{y + HEIGHT + 16}" text-anchor="end">{escape(right)}</text>'
    )


def _front(results: Sequence[Planned], y: float) -> str:
    best, worst = max(one.goodput for one in results) or 1.0, max(one.missed for one in results) or 1
    parts = [_panel(y, "good requests per worker hour over missed targets", f"{best:.0f}", f"{worst} missed")]
    for one in results:
        x, up = LEFT + one.missed / worst * WIDTH, y + HEIGHT - one.goodput / best * HEIGHT
        label = f"{one.planner}, {one.startup:g} s"
        parts.append(f'<circle cx="{x:.1f}" cy="{up:.1f}" r="4"/>')
        parts.append(f'<text x="{x + 7:.1f}" y="{up + 4:.1f}">{escape(label)}</text>')
    return "".join(parts)


def _end(results: Sequence[Planned]) -> float:
    """Seconds of the longest."""
    return max((other.curve[-1].at for other in results if other.curve), default=1.0)


def _line(values: Sequence[float], most: float, y: float) -> str:
    """One value for each of the BUCKETS of the time."""
    step = WIDTH / BUCKETS
    points = (
        f"{LEFT + (n + 0.5) * step:.1f},{y + HEIGHT - min(1.0, one / most) * HEIGHT:.1f}"
        for n, one in enumerate(values)
    )
    return f'<polyline points="{" ".join(points)}"/>'


def _buckets(one: Planned, end: float) -> list[list[float]]:
    """Seconds to the first token of the requests that came in each."""
    found: list[list[float]] = [[] for _ in range(BUCKETS)]
    for request in one.served:
        found[min(BUCKETS - 1, int(request.at / 1000 / end * BUCKETS))].append(request.ttft / 1000)
    return found


def _load(results: Sequence[Planned], y: float) -> str:
    end = _end(results)
    rates = [len(times) / (end / BUCKETS) for times in _buckets(results[0], end)]
    most = max(rates) or 1.0
    return _panel(y, "requests per second", f"{most:.1f}", f"{end:.0f} s") + _line(rates, most, y)


def _first_tokens(results: Sequence[Planned], one: Planned, y: float) -> str:
    end = _end(results)
    times = [sorted(found)[len(found) * 9 // 10] if found else 0.0 for found in _buckets(one, end)]
    name = f"{one.planner}, start-up {one.startup:g} s: first token, 90 of 100 requests"
    return _panel(y, name, f"{LATEST:g} s", f"{end:.0f} s") + _line(times, LATEST, y)


def _workers(results: Sequence[Planned], one: Planned, y: float) -> str:
    end = _end(results)
    most = max((moment.expected for other in results for moment in other.curve), default=1)
    points: list[str] = []
    before = one.curve[0].ready if one.curve else 0
    for moment in one.curve:
        x = LEFT + moment.at / end * WIDTH
        points += [f"{x:.1f},{y + HEIGHT - count / most * HEIGHT:.1f}" for count in (before, moment.ready)]
        before = moment.ready
    name = f"{one.planner}, start-up {one.startup:g} s: {one.goodput:.0f} per worker hour, {one.missed} missed"
    return _panel(y, name, f"{most} workers", f"{end:.0f} s") + f'<polyline points="{" ".join(points)}"/>'
