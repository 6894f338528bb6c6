"""The counters in Prometheus' text form. prometheus_client is imported at the first scrape, not at start-up."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from .metrics import Histogram, Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Collect = Callable[[], Iterable["Metric"]]
"""Called at each scrape; returns metric families (prometheus_client.core) of whoever added it."""


class Exposition:
    """A registry of its own for one server. Append to `extra` to show the statistics of other parts."""

    def __init__(self, metrics: Metrics, prefix: str, extra: Sequence[Collect] = ()) -> None:
        self._metrics = metrics
        self._prefix = prefix
        self._registry: CollectorRegistry | None = None
        self.extra: list[Collect] = list(extra)

    @property
    def registry(self) -> "CollectorRegistry":
        """The registry, made when first asked for."""
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def text(self) -> bytes:
        """One scrape."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> Iterator["Metric"]:
        """All families: the server's, then everybody else's."""
        yield from self._counters()
        yield from self._histograms()
        for collect in self.extra:
            yield from collect()

    def _counters(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        name, models = self._prefix, self._metrics.models.items()
        labels = ["model", "endpoint", "request_type", "status"]
        requests = CounterMetricFamily(f"{name}_requests", "Finished requests", labels=labels)
        rejections = CounterMetricFamily(f"{name}_model_rejection", "Overloads", labels=["model", "endpoint"])
        cancelled = CounterMetricFamily(f"{name}_model_cancellation", "Requests whose client left", labels=labels[:3])
        tokens = CounterMetricFamily(f"{name}_output_tokens", "Tokens of answers", labels=["model"])
        inflight = GaugeMetricFamily(f"{name}_inflight_requests", "Requests in work", labels=["model"])
        queued = GaugeMetricFamily(f"{name}_queued_requests", "Requests without a first token", labels=["model"])
        for model, counts in models:
            for key, value in counts.requests.items():
                requests.add_metric([model, *key], value)
            for endpoint, value in counts.rejections.items():
                rejections.add_metric([model, endpoint], value)
            for pair, value in counts.cancellations.items():
                cancelled.add_metric([model, *pair], value)
            tokens.add_metric([model], counts.output_tokens)
            inflight.add_metric([model], counts.inflight)
            queued.add_metric([model], counts.queued)
        yield from (requests, rejections, cancelled, tokens, inflight, queued)
        gone = self._metrics.disconnected_clients
        yield GaugeMetricFamily(f"{name}_disconnected_clients", "Clients that left before the end", value=gone)
        fields = self._metrics.unknown_fields
        yield CounterMetricFamily(f"{name}_unknown_fields", "Request fields that are not known", value=fields)

    def _histograms(self) -> Iterator["Metric"]:
        from prometheus_client.core import HistogramMetricFamily

        for attribute, name, text in (
            ("duration", "request_duration_seconds", "From the request's arrival to the end of its answer"),
            ("input_tokens", "input_sequence_tokens", "Prompt tokens per request"),
            ("output_length", "output_sequence_tokens", "Output tokens per request"),
            ("first_token", "time_to_first_token_seconds", "From the request's arrival to the first token"),
            ("gap", "inter_token_latency_seconds", "Gap between chunks divided by the tokens in the later one"),
        ):
            family = HistogramMetricFamily(f"{self._prefix}_{name}", text, labels=["model"])
            for model, counts in self._metrics.models.items():
                histogram: Histogram = getattr(counts, attribute)
                family.add_metric([model], buckets=_cumulative(histogram), sum_value=histogram.total)
            yield family


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
