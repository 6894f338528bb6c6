"""The counters of an HTTP server as metric families. prometheus_client is imported at the first scrape."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Collect = Callable[[], Iterable["Metric"]]
"""Called at each scrape; returns metric families (prometheus_client.core) of whoever added it."""


_KEY = ("endpoint", "request_type", "status")
_COUNTERS = (
    ("requests", "requests", "Finished requests", _KEY),
    ("rejections", "model_rejection", "Overloads", _KEY[:1]),
    ("cancellations", "model_cancellation", "Requests whose client left", _KEY[:2]),
    ("output_tokens", "output_tokens", "Output tokens", ()),
)
_GAUGES = (
    ("inflight", "inflight_requests", "Requests in work", ()),
    ("queued", "queued_requests", "Requests without a first token", ()),
)
_HISTOGRAMS = (
    ("duration", "request_duration_seconds", "From the request's arrival to the end of its response"),
    ("input_tokens", "input_sequence_tokens", "Prompt tokens per request"),
    ("output_length", "output_sequence_tokens", "Output tokens per request"),
    ("first_token", "time_to_first_token_seconds", "From the request's arrival to the first token"),
    ("gap", "inter_token_latency_seconds", "Gap between chunks divided by the tokens in the later one"),
)
"""Attribute of ModelMetrics, name of the family, its help, and its labels beside `model`."""


def families(metrics: Metrics) -> "Iterator[Metric]":
    """All families of a server; their names begin with the prefix that the operator chose."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    prefix = f"{metrics.prefix}_"
    for kind, rows in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for attribute, name, text, labels in rows:
            family = kind(prefix + name, text, labels=["model", *labels])
            for model, counts in metrics.models.items():
                found = getattr(counts, attribute)
                for key, value in found.items() if labels else [((), found)]:
                    family.add_metric([model, *key], value)
            yield family
    gone, fields = metrics.disconnected_clients, metrics.unknown_fields
    yield GaugeMetricFamily(f"{prefix}disconnected_clients", "Clients that left before the end", value=gone)
    yield CounterMetricFamily(f"{prefix}unknown_fields", "Request fields that are not known", value=fields)
    for attribute, name, text in _HISTOGRAMS:
        histogram = HistogramMetricFamily(prefix + name, text, labels=["model"])
        for model, counts in metrics.models.items():
            buckets = getattr(counts, attribute).snapshot()
            histogram.add_metric([model], buckets.cumulative(), buckets.sum)
        yield histogram
