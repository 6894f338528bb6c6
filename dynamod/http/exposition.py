"""The counters of an HTTP server as metric families. prometheus_client is imported at the first scrape."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Collect = Callable[[], Awaitable[Iterable["Metric"]]]
"""Called at each scrape; returns metric families (prometheus_client.core)."""


def families(metrics: Metrics) -> "Iterator[Metric]":
    """All families of a server; their names begin with the prefix that the operator chose."""
    yield from _counters(metrics)
    yield from _histograms(metrics)


def _counters(metrics: Metrics) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name, labels = metrics.prefix, ["model", "endpoint", "request_type", "status"]
    requests = CounterMetricFamily(f"{name}_requests", "Finished requests", labels=labels)
    rejections = CounterMetricFamily(f"{name}_model_rejection", "Overloads", labels=["model", "endpoint"])
    cancelled = CounterMetricFamily(f"{name}_model_cancellation", "Requests whose client left", labels=labels[:3])
    tokens = CounterMetricFamily(f"{name}_output_tokens", "Output tokens", labels=["model"])
    inflight = GaugeMetricFamily(f"{name}_inflight_requests", "Requests in work", labels=["model"])
    queued = GaugeMetricFamily(f"{name}_queued_requests", "Requests without a first token", labels=["model"])
    for model, counts in metrics.models.items():
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
    gone = metrics.disconnected_clients
    yield GaugeMetricFamily(f"{name}_disconnected_clients", "Clients that left before the end", value=gone)
    fields = metrics.unknown_fields
    yield CounterMetricFamily(f"{name}_unknown_fields", "Request fields that are not known", value=fields)


def _histograms(metrics: Metrics) -> "Iterator[Metric]":
    from prometheus_client.core import HistogramMetricFamily

    for attribute, name, text in (
        ("duration", "request_duration_seconds", "From the request's arrival to the end of its response"),
        ("input_tokens", "input_sequence_tokens", "Prompt tokens per request"),
        ("output_length", "output_sequence_tokens", "Output tokens per request"),
        ("first_token", "time_to_first_token_seconds", "From the request's arrival to the first token"),
        ("gap", "inter_token_latency_seconds", "Gap between chunks divided by the tokens in the later one"),
    ):
        family = HistogramMetricFamily(f"{metrics.prefix}_{name}", text, labels=["model"])
        for model, counts in metrics.models.items():
            buckets = getattr(counts, attribute).snapshot()
            family.add_metric([model], buckets.cumulative(), buckets.sum)
        yield family
