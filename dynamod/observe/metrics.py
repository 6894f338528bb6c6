"""Statistics structs as metric families of prometheus_client, which is imported at the first scrape of a process."""

import asyncio
import importlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `exposition` returns."""

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""What `exposition` returns with `openmetrics`."""

Row = tuple[str, dict[str, str], msgspec.Struct]
"""Prefix of the names, labels, numbers."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of histograms of a part of a request."""

DURATION = (*SECONDS, 120.0, 300.0, 600.0)
"""Bounds of histograms of whole requests."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


Kind = Literal["counter", "gauge", "histogram"]


class Definition(NamedTuple):
    """A metric of code that makes its samples one by one. `name`: without prefix, and without `_total`."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()

    def family(self, prefix: str) -> Any:
        """The family without samples, as prometheus_client has it: `{prefix}_{name}`."""
        from prometheus_client import core

        kinds = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        return kinds[self.kind](f"{prefix}_{self.name}", self.help, labels=self.labels)


class Buckets(msgspec.Struct, frozen=True):
    """A histogram: counts per bucket (upper bounds inclusive, one more count for what lies above all), and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of upper bound and count of all that is not above it, as HistogramMetricFamily takes them."""
        bounds = (*(str(float(bound)) for bound in self.bounds), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True))


class Histogram:
    """Counts per bucket (upper bounds inclusive, the last one open) and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add `times` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def snapshot(self) -> Buckets:
        """The histogram as it is now."""
        return Buckets(tuple(self.bounds), tuple(self.counts), self.total)


async def load() -> None:
    """Import prometheus_client in a thread: the first time it takes 60 ms, and token streams continue meanwhile."""
    await asyncio.to_thread(importlib.import_module, "prometheus_client")


def families(rows: Iterable[Row]) -> "list[Metric]":
    """One family per field of the structs, with a sample of each row that has it: `{prefix}_{field}`.

    Numbers become samples, booleans 0 or 1, `Buckets` histograms, nested structs join their names by `_`; None, fields
    whose names are labels, and everything else is left out. A field is a counter if its name ends with `_total` or its
    type is `dynamod.actor.Total`. The help is the description of the field, else the first line of the docstring of
    its struct.
    """
    return merged(family for prefix, labels, struct in rows for family in _families(prefix, labels, struct))


def merged(found: "Iterable[Metric]") -> "list[Metric]":
    """Every family once, with the samples of all. Of two samples with the same name and labels the first stays."""
    from prometheus_client.core import Metric

    known: dict[tuple[str, str], Metric] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for one in found:
        family = known.setdefault((one.name, one.type), Metric(one.name, one.documentation, one.type))
        for sample in one.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            if key not in seen:
                seen.add(key)
                family.samples.append(sample)
    return list(known.values())


def labelled(found: "Iterable[Metric]", key: str, value: str) -> "Iterator[Metric]":
    """The families, each sample with one label more."""
    for family in found:
        family.samples = [one._replace(labels={key: value, **one.labels}) for one in family.samples]
        yield family


def exposition(found: "Iterable[Metric]", *, openmetrics: bool = False) -> str:
    """Families in Prometheus' text form (0.0.4), or in that of OpenMetrics, which alone has exemplars."""
    registry = cast("Any", SimpleNamespace(collect=lambda: found))
    if not openmetrics:
        from prometheus_client import generate_latest

        return generate_latest(registry).decode()
    forms: Any = importlib.import_module("prometheus_client.openmetrics.exposition")
    options = {"escaping": forms.ALLOWUTF8} if hasattr(forms, "ALLOWUTF8") else {}  # else `vllm:` becomes `vllm_`
    text: bytes = forms.generate_latest(registry, **options)
    return text.decode()


def rendered(found: "Iterable[Metric]", accept: str) -> tuple[bytes, str]:
    """Families in the form that a scraper asks for by its header Accept, and the type of the form."""
    asked = openmetrics(accept)
    return exposition(found, openmetrics=asked).encode(), OPENMETRICS if asked else CONTENT_TYPE


def openmetrics(accept: str) -> bool:
    """Whether a scraper with this header Accept takes the form of OpenMetrics."""
    return "application/openmetrics-text" in accept


def parsed(text: str) -> "Iterable[Metric]":
    """The families of a text of `exposition`, in either form."""
    form = ".openmetrics" if text.endswith("# EOF\n") else ""
    forms: Any = importlib.import_module(f"prometheus_client{form}.parser")
    found: Iterable[Metric] = forms.text_string_to_metric_families(text)
    return found


def _families(prefix: str, labels: dict[str, str], struct: msgspec.Struct) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names, values = list(labels), list(labels.values())
    for field, counts in _fields(type(struct)).items():
        value, name, text = getattr(struct, field), f"{prefix}_{snake(field)}", help_of(type(struct), field)
        if isinstance(value, Buckets):
            histogram = HistogramMetricFamily(name, text, labels=names)
            histogram.add_metric(values, value.cumulative(), value.sum)
            yield histogram
        elif isinstance(value, msgspec.Struct):
            yield from _families(name, labels, value)
        elif isinstance(value, int | float) and field not in labels:
            family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, labels=names)
            family.add_metric(values, value)
            yield family


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, bool]:
    """The fields of a struct, and whether each is a counter."""
    return {one.name: is_counter(one) for one in msgspec.structs.fields(kind)}


def is_counter(field: msgspec.structs.FieldInfo) -> bool:
    """Whether a number of a struct only grows: by its name, or by `dynamod.actor.Total` (no import from here)."""
    return field.name.endswith("_total") or {"metric": "counter"} in (mark.extra for mark in marks(field))


def marks(field: msgspec.structs.FieldInfo) -> list[msgspec.Meta]:
    """What the annotation of a field says of it."""
    return [one for one in getattr(field.type, "__metadata__", ()) if isinstance(one, msgspec.Meta)]


@cache
def help_of(kind: type[msgspec.Struct], name: str) -> str:
    """The help of a field: its description, else the first line of the docstring of the struct."""
    field = next(one for one in msgspec.structs.fields(kind) if one.name == name)
    found = next((one.description for one in marks(field) if one.description), "")
    return found or (kind.__doc__ or kind.__name__).strip().partition("\n")[0].strip()


def snake(name: str) -> str:
    """`maxDepth` and `MaxDepth` as `max_depth`."""
    return _CAMEL.sub("_", name).lower()
