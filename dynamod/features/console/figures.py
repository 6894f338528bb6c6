"""The four figures of a node over an hour: requests, errors, time to the first token, tokens (pure)."""

from collections import deque
from collections.abc import Sequence

import msgspec

from dynamod.features.top.rows import Top

HOUR = 3600.0
STEP = 5.0
"""Seconds that a point stands for."""
POINTS = int(HOUR / STEP)


class Point(msgspec.Struct, frozen=True, array_like=True):
    """Means until `at`, in Unix seconds. None: not known, or nothing came. `ttft`: the median in seconds."""

    at: float
    requests: float | None
    errors: float | None
    ttft: float | None
    ttft_p99: float | None
    tokens: float | None


def point(at: float, view: Top) -> Point:
    """The figures of a view: sums of all frontends and workers; of the times those of the slowest frontend."""
    frontends = [row.ingress for row in view.processes if row.ingress is not None]
    workers = [row.worker for row in view.processes if row.worker is not None]
    return Point(
        at,
        _sum([one.requests_per_second for one in frontends]),
        _sum([one.errors_per_second for one in frontends]),
        _most([one.ttft_p50 for one in frontends]),
        _most([one.ttft_p99 for one in frontends]),
        _sum([one.tokens_per_second for one in workers]),
    )


class History:
    """The points of the last hour. A point after a pause has the means of the pause."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)

    def due(self, at: float) -> bool:
        """Whether it is time for a point."""
        return not self._points or at - self._points[-1].at >= STEP - 0.5

    def add(self, found: Point) -> None:
        """Keep a point."""
        self._points.append(found)
        while self._points[0].at < found.at - HOUR:
            self._points.popleft()

    def points(self) -> Sequence[Point]:
        """The oldest first."""
        return list(self._points)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _sum(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None


def _most(values: Sequence[float | None]) -> float | None:
    return max(_known(values), default=None)
