"""What comes to a pool: rate, work and burstiness over a window, and how it grows."""

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from dynamod.observe.bounded import bounded

from .arima import by_arima
from .settings import Predictor

MOST_TICKS = 720
"""That are kept: an hour of ticks of 5 s."""

STEEPEST = 3.0
"""Times what comes now, at most, in a forecast."""

TREND, LONGEST_TREND = 60.0, 120.0
"""Seconds that a trend is looked for in, twice each: as many as are forecast, within these."""


NORMAL_STEP = 0.954
"""Median of the steps between two counts, by their standard deviation: a load that rises or falls once is no burst."""


Q_LEVEL, Q_TREND, R = 1.0, 0.1, 10.0
"""Variances of the filter: of the level and the slope from tick to tick, and of a value."""


class Demand(NamedTuple):
    """Of a pool. `rate`: requests per second. `service`, `square`: mean seconds of computing a prompt, and mean square.

    `bursts`: variance of how many come in a tick by their mean: 1 when they come by chance. `context`: KV tokens.
    """

    rate: float
    service: float
    square: float
    bursts: float
    context: float

    @property
    def work(self) -> float:
        """Seconds of computing prompts that come per second: workers that would be busy."""
        return self.rate * self.service

    def grown(self, times: float) -> "Demand":
        """The same with so many times the requests."""
        return self._replace(rate=self.rate * times, context=self.context * times)


class _Tick(NamedTuple):
    requests: int
    work: float
    square: float
    context: int


def by_line(work: Sequence[float]) -> tuple[float, float]:
    """The last value of a line through these, and its slope less the error of it."""
    steps = np.arange(len(work))
    slope, start = (float(value) for value in np.polyfit(steps, work, 1))
    spread = float(np.std(np.array(work) - (slope * steps + start)))
    slope -= spread * math.sqrt(12 / len(work)) / len(work)
    return slope * (len(work) - 1) + start, slope


def by_filter(work: Sequence[float]) -> tuple[float, float]:
    """Level and slope of these by a Kalman filter of both, with NVIDIA Dynamo's variances."""
    move, noise = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([Q_LEVEL, Q_TREND])
    state, error = np.array([work[0], 0.0]), np.eye(2) * R
    for value in work[1:]:
        state, error = move @ state, move @ error @ move.T + noise
        gain = error[:, 0] / (error[0, 0] + R)
        state, error = state + gain * (value - state[0]), error - np.outer(gain, error[0])
    return float(state[0]), float(state[1])


class Arrivals:
    """Ticks of `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._ticks: deque[_Tick] = deque(maxlen=MOST_TICKS)
        bounded(self, "ticks of demand", MOST_TICKS, lambda one: len(one._ticks), "ticks")

    def add(self, services: Sequence[float], context: int) -> None:
        """A tick: seconds that each prompt takes that has come, and the KV tokens in use at its end."""
        self._ticks.append(_Tick(len(services), sum(services), sum(one * one for one in services), context))

    def demand(self, window: float) -> Demand:
        """Of so many seconds until now. The context is the largest."""
        ticks = self._last(window)
        count = sum(one.requests for one in ticks)
        if not count:
            return Demand(0.0, 0.0, 0.0, 1.0, max((one.context for one in ticks), default=0))
        mean = count / len(ticks)
        variance = sum((one.requests - mean) ** 2 for one in ticks) / len(ticks)
        steps = [abs(one.requests - before.requests) for before, one in pairwise(ticks)]
        variance = min(variance, (median(steps) / NORMAL_STEP) ** 2) if len(steps) > 1 else mean
        return Demand(
            rate=mean / self._interval,
            service=sum(one.work for one in ticks) / count,
            square=sum(one.square for one in ticks) / count,
            bursts=max(1.0, variance / mean),
            context=max(one.context for one in ticks),
        )

    def growth(self, ahead: float, predictor: Predictor = "trend") -> float:
        """What comes in so many seconds by what comes now, 1 to STEEPEST: by a line less the error of its slope.

        `kalman`: by a filter of level and slope; `arima`: by a model of the series; `constant`: 1.
        """
        if predictor == "constant":
            return 1.0
        span = min(LONGEST_TREND, max(TREND, ahead))
        ticks = self._last(2 * span)
        if len(ticks) * self._interval < span:
            return 1.0
        work, steps = [one.work for one in ticks], max(1, round(ahead / self._interval))
        match predictor:
            case "arima":
                now, slope = by_arima(work, steps)
            case "kalman":
                now, slope = by_filter(work)
            case _:
                now, slope = by_line(work)
        if now <= 0 or slope <= 0:
            return 1.0
        return min(STEEPEST, 1 + slope * ahead / self._interval / now)

    def _last(self, seconds: float) -> list[_Tick]:
        count = max(1, round(seconds / self._interval))
        return list(islice(self._ticks, max(0, len(self._ticks) - count), None))
