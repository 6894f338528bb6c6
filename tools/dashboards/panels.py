"""What a dashboard consists of, and expressions of PromQL that panels have in common."""

from collections.abc import Mapping
from typing import NamedTuple


class Panel(NamedTuple):
    """A graph. `unit`: as Grafana names it. `queries`: expression by legend. `help`: what a high value means."""

    title: str
    unit: str
    queries: Mapping[str, str]
    help: str = ""


class Board(NamedTuple):
    """A dashboard, with the file's name. `rows`: panels by the title of their row."""

    file: str
    title: str
    rows: Mapping[str, tuple[Panel, ...]]


RANGE = "[$__rate_interval]"
MODEL, PROCESS = 'model=~"$model"', 'process=~"$process"'
_SELECTED = {"model": MODEL, "process": PROCESS}


def rate(metric: str, labels: str, *by: str) -> str:
    """How much a counter grows per second, per value of `by`."""
    return _by(f"sum(rate({metric}{_braces(labels)}{RANGE}))", by)


def total(metric: str, labels: str, *by: str) -> str:
    """The sum of a gauge per value of `by`."""
    return _by(f"sum({metric}{_braces(labels)})", by)


def largest(metric: str, labels: str, *by: str) -> str:
    """The largest value of a gauge per value of `by`."""
    return _by(f"max({metric}{_braces(labels)})", by)


def ratio(above: str, below: str, labels: str, *by: str) -> str:
    """The quotient of the growth of two counters."""
    return f"{rate(above, labels, *by)} / {rate(below, labels, *by)}"


def mean(histogram: str, labels: str, *by: str) -> str:
    """The mean of what a histogram has observed."""
    return ratio(f"{histogram}_sum", f"{histogram}_count", labels, *by)


def quantiles(histogram: str, by: str = "model") -> dict[str, str]:
    """Three quantiles of a histogram, by their legends."""
    growth = rate(f"{histogram}_bucket", _SELECTED[by], "le", by)
    return {f"p{percent} {{{{{by}}}}}": f"histogram_quantile(0.{percent}, {growth})" for percent in (50, 95, 99)}


def per(by: str, **queries: str) -> dict[str, str]:
    """The queries with legends of their names and the label `by`."""
    return {f"{name.replace('_', ' ')} {{{{{by}}}}}": query for name, query in queries.items()}


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _by(expression: str, by: tuple[str, ...]) -> str:
    return f"{expression} by ({', '.join(by)})" if by else expression
