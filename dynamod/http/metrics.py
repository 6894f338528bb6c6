"""What the server counts: plain ints and lists on the hot path. Scrapes and `dynamo top` read them.

prometheus_client is imported at the first scrape.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from dynamod.observe.bounded import bounded
from dynamod.observe.metrics import DURATION, SECONDS, Buckets, Definition, Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Exemplar, Metric

    from .records import Records

Example = tuple[float, str, float]
"""Seconds, id of the trace, and Unix time of a request."""

Collect = Callable[[], Awaitable[Iterable["Metric"]]]
"""Called at each scrape; returns metric families (prometheus_client.core) of the code that added it."""


UNKNOWN = "unknown"
MAX_MODELS = 1000

GAP = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
INPUT = (0, 50, 100, 200, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
OUTPUT = (0, 10, 50, 100, 200, 500, 1000, 2000, 4000, 8000, 16000, 32000)


@dataclass(slots=True, eq=False)
class ModelMetrics:
    """Everything counted under one `model` label."""

    requests: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)  # as `_KEY`
    started: Counter[tuple[str, str]] = field(default_factory=Counter)  # endpoint, request_type
    rejections: Counter[tuple[str]] = field(default_factory=Counter)  # endpoint
    cancellations: Counter[tuple[str, str]] = field(default_factory=Counter)  # endpoint, request_type
    inflight: int = 0
    queued: int = 0  # accepted, no token yet
    output_tokens: int = 0
    duration: Histogram = field(default_factory=lambda: Histogram(DURATION))
    input_tokens: Histogram = field(default_factory=lambda: Histogram(INPUT))
    output_length: Histogram = field(default_factory=lambda: Histogram(OUTPUT))
    cached: Histogram = field(default_factory=lambda: Histogram(INPUT))
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    gap: Histogram = field(default_factory=lambda: Histogram(GAP))
    examples: dict[tuple[str, int], Example] = field(default_factory=dict[tuple[str, int], Example])  # see `example`

    def example(self, name: str, seconds: float, trace: str) -> None:
        """A request with a trace has taken so long: the last one of each bucket is shown. `name`: of a histogram."""
        histogram: Histogram = getattr(self, name)
        self.examples[name, bisect_left(histogram.bounds, seconds)] = (seconds, trace, time.time())

    def buckets(self, name: str, found: Buckets) -> "list[tuple[str, float, Exemplar | None]]":
        """The buckets of a histogram as HistogramMetricFamily takes them, with their examples."""
        if not self.examples:
            return [(bound, count, None) for bound, count in found.cumulative()]
        from prometheus_client.core import Exemplar

        shown = {
            place: Exemplar({"trace_id": trace}, seconds, round(at, 3))
            for (of, place), (seconds, trace, at) in self.examples.items()
            if of == name
        }
        return [(bound, count, shown.get(place)) for place, (bound, count) in enumerate(found.cumulative())]


class Metrics:
    """All counters of one server, whose names begin with `prefix`.

    Labels come only from models that are served, never from what clients type. `records`: what features read of each
    request; None where none reads.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.records: Records | None = None
        self.models: dict[str, ModelMetrics] = {}
        self.disconnected_clients = 0
        self.unknown_fields = 0
        self.unsupported_fields: Counter[str] = Counter()  # that were left out, by field
        bounded(self, "models with metrics", MAX_MODELS, lambda one: len(one.models), "models")

    def model(self, name: str) -> ModelMetrics:
        """Counters of a served model, by its name in lower case as in NVIDIA Dynamo."""
        label = name.lower()
        if label not in self.models and len(self.models) >= MAX_MODELS:
            label = UNKNOWN
        if label not in self.models:
            self.models[label] = ModelMetrics()
        return self.models[label]


class HttpStatistics(msgspec.Struct, frozen=True):
    """What `dynamo top` shows of HTTP servers: requests finished, in work, without a first token; times in seconds.

    `errors`: those of the finished ones that failed.
    """

    requests: int
    inflight: int
    queued: int
    first_token: Buckets
    gap: Buckets
    errors: int = 0


def statistics(servers: Iterable[Metrics]) -> HttpStatistics:
    """Sums over all models of these servers."""
    models = [model for server in servers for model in server.models.values()]
    return HttpStatistics(
        requests=sum(model.requests.total() for model in models),
        inflight=sum(model.inflight for model in models),
        queued=sum(model.queued for model in models),
        first_token=_sum(SECONDS, [model.first_token for model in models]),
        gap=_sum(GAP, [model.gap for model in models]),
        errors=sum(count for model in models for key, count in model.requests.items() if key[2] == "error"),
    )


def _sum(bounds: Sequence[float], histograms: Iterable[Histogram]) -> Buckets:
    whole = Histogram(bounds)
    for one in histograms:
        whole.counts = [count + more for count, more in zip(whole.counts, one.counts, strict=True)]
        whole.total += one.total
    return whole.snapshot()


_KEY = ("model", "endpoint", "request_type", "status", "error_type")
OF_MODELS = (
    ("requests", Definition("counter", "requests", "Requests that ended, for models that are served.", _KEY)),
    ("started", Definition("counter", "requests_started", "Requests for models that are served.", _KEY[:3])),
    (
        "rejections",
        Definition("counter", "model_rejection", "Requests refused because all workers were busy.", _KEY[:2]),
    ),
    ("cancellations", Definition("counter", "model_cancellation", "Requests whose client left.", _KEY[:3])),
    ("output_tokens", Definition("counter", "output_tokens", "Tokens of all answers.", _KEY[:1])),
    (
        "inflight",
        Definition("gauge", "inflight_requests", "Open requests, from the known model to the answer's end.", _KEY[:1]),
    ),
    ("inflight", Definition("gauge", "active_requests", "The same as inflight_requests.", _KEY[:1])),
    ("queued", Definition("gauge", "queued_requests", "Open requests without a first token.", _KEY[:1])),
    (
        "duration",
        Definition(
            "histogram", "request_duration_seconds", "From the request's arrival to the end of its response.", _KEY[:1]
        ),
    ),
    ("input_tokens", Definition("histogram", "input_sequence_tokens", "Prompt tokens per request.", _KEY[:1])),
    ("output_length", Definition("histogram", "output_sequence_tokens", "Output tokens per request.", _KEY[:1])),
    (
        "cached",
        Definition(
            "histogram",
            "cached_tokens",
            "Prompt tokens per request from the engine's cache, if the engine reports them.",
            _KEY[:1],
        ),
    ),
    (
        "first_token",
        Definition(
            "histogram", "time_to_first_token_seconds", "From the request's arrival to the first token.", _KEY[:1]
        ),
    ),
    (
        "gap",
        Definition(
            "histogram",
            "inter_token_latency_seconds",
            "Gap between chunks divided by the tokens in the later one.",
            _KEY[:1],
        ),
    ),
)
"""Attribute of ModelMetrics, and the metric that shows it."""
GONE = Definition("gauge", "disconnected_clients", "Clients that left before the end of the answer.")
UNKNOWN_FIELDS = Definition("counter", "unknown_fields", "Unknown fields of requests.")
UNSUPPORTED_FIELDS = Definition("counter", "unsupported_fields", "Fields of requests that were left out.", ("field",))


def families(metrics: Metrics) -> "Iterator[Metric]":
    """All families of a server; their names begin with the prefix that the operator chose."""
    for attribute, definition in OF_MODELS:
        family = definition.family(metrics.prefix)
        for model, counts in metrics.models.items():
            found = getattr(counts, attribute)
            if isinstance(found, Histogram):
                buckets = found.snapshot()
                family.add_metric([model], counts.buckets(attribute, buckets), buckets.sum)
            else:
                for key, value in found.items() if isinstance(found, Counter) else [((), found)]:
                    family.add_metric([model, *key], value)
        yield family
    for definition, count in ((GONE, metrics.disconnected_clients), (UNKNOWN_FIELDS, metrics.unknown_fields)):
        family = definition.family(metrics.prefix)
        family.add_metric([], count)
        yield family
    ignored = UNSUPPORTED_FIELDS.family(metrics.prefix)
    for name, count in metrics.unsupported_fields.items():
        ignored.add_metric([name], count)
    yield ignored
