"""Hands each traced request of one HTTP server to the exporter process."""

import asyncio
import importlib.util
import json
import time
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

import dynamod
from dynamod.http.context import STATUS_ROUTES, RequestContext
from dynamod.http.metrics import Metrics
from dynamod.http.records import RecordReader
from dynamod.message.errors import UserError
from dynamod.observe.line_writer import LineWriter
from dynamod.observe.metrics import Definition
from dynamod.observe.records import RequestRecord
from dynamod.observe.timeline import Mark, Timeline

from .context import HEADERS, TraceContext, read_context
from .handed import Collector
from .names import PARAMETERS
from .pipe import ExporterPipe
from .settings import TracingSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

FLUSH_S = 2.5
"""Seconds that the last requests get at the end of the server."""
WAITING = 16 * 1024 * 1024
"""Characters that may wait for the exporter."""
MOST = 16_384
"""Requests that may be on their way to it."""
TRACES = Definition(
    "counter",
    "traces",
    "Requests with spans; dropped ones are in no collector.",
    ("outcome",),
)
_encode = msgspec.json.Encoder().encode
_NONE: tuple[Any, ...] = ()


class TracingReader(RecordReader):
    """Reads what clients say of their traces, and hands requests on at their end. Raises UserError.

    `metrics`: of the server, whose histograms get trace ids as exemplars.
    """

    headers = frozenset(HEADERS)

    def __init__(self, settings: TracingSettings, metrics: Metrics | None = None) -> None:
        require_protobuf("otel_export_enabled", "unset OTEL_EXPORT_ENABLED")
        self._metrics = metrics
        self._ratio, self._linked = settings.otel_traces_sample_ratio, settings.otel_remote_parent_as_link
        excluded = settings.otel_excluded_paths
        self._excluded = frozenset(STATUS_ROUTES if excluded is None else excluded)
        self._pipe = ExporterPipe(collector(settings))
        self.writer = LineWriter(self._pipe, "traces", waiting=WAITING, most=MOST)

    def begins(self, context: RequestContext, asked: Any) -> None:
        """Give a request to an engine its place in its trace."""
        trace = context.timeline.trace = self._read(context.request.headers)
        trace.asked = asked

    def _read(self, headers: Any) -> TraceContext:
        return read_context(headers, self._ratio, linked=self._linked)

    def take(self, record: RequestRecord) -> None:
        """Hand a request on, if it is sampled."""
        timeline: Timeline | None = record.timeline
        if timeline is None or record.path in self._excluded:
            return
        trace: TraceContext = timeline.trace or self._read(record.headers)
        if trace.sampled:
            self.writer.put(line(record, timeline, trace))
            if self._metrics is not None and record.model and record.first_ms is not None:
                meter = self._metrics.model(record.model)
                meter.example("first_token", record.first_ms / 1000, trace.trace)
                meter.example("duration", record.duration_ms / 1000, trace.trace)

    async def close(self) -> None:
        """Have the collector get all that was taken."""
        await self.writer.close(FLUSH_S)
        await asyncio.to_thread(self._pipe.end, FLUSH_S)

    async def families(self, prefix: str) -> "Iterable[Metric]":
        """The metric of the HTTP server, whose name begins with `prefix`."""
        told = self._pipe.told()
        family = TRACES.family(prefix)
        family.add_metric(["exported"], told.exported)
        family.add_metric(["dropped"], told.dropped + self.writer.dropped)
        return [family]


def require_protobuf(name: str, instead: str) -> None:
    """Raise UserError where the messages of OTLP are not installed. `name`: the setting that needs them."""
    if importlib.util.find_spec("google.protobuf") is None or not _installed():
        what = f"{name}: the package opentelemetry-proto is not installed"
        raise UserError(what, f"pip install 'dynamod-llm[otel]', or {instead}")


def collector(settings: TracingSettings, signal: str = "traces") -> Collector:
    """Where spans go, or `logs`. Raises UserError for a URL that is none."""
    protocol, own = settings.otel_exporter_otlp_protocol, f"otel_exporter_otlp_{signal}_endpoint"
    url: str = getattr(settings, own)
    name = own if url else "otel_exporter_otlp_endpoint"
    if not url:
        port = 4317 if protocol == "grpc" else 4318
        url = settings.otel_exporter_otlp_endpoint or f"http://localhost:{port}"
        url = url if protocol == "grpc" else f"{url.rstrip('/')}/v1/{signal}"
    if protocol == "grpc" and "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2].strip("/"):
        raise UserError(f"{name}: {url!r} is no URL", "give one like http://localhost:4318")
    return Collector(
        url, protocol, settings.otel_exporter_otlp_headers, settings.otel_service_name, dynamod.__version__
    )


def line(record: RequestRecord, timeline: Timeline, trace: TraceContext) -> bytes:
    """A request as the exporter reads it: a `handed.Handed`."""
    asked = trace.asked
    value = (
        *(record.id, trace.trace, trace.span, trace.parent, trace.link, trace.state, trace.attempts),
        time.time() - perf_counter(),
        (
            *(timeline.arrived, timeline.begun, timeline.read, timeline.turn, timeline.checked, timeline.lowering),
            *(timeline.lowered, timeline.first_write, timeline.ended),
        ),
        [one if one[3] is None else _mark(one) for one in timeline.marks],
        *(record.method, record.path, record.client, record.endpoint, record.model, record.stream, record.status),
        *(record.error, record.finish, record.first_ms, record.prompt_tokens, record.cached_tokens),
        *(record.completion_tokens, record.node, record.process),
        _parameters(asked) if asked is not None else {},
    )
    try:
        return _encode(value) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which clients may send
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _mark(mark: Mark) -> Sequence[Any]:
    what, choice, at, about = mark
    if isinstance(about, str):
        return what, choice, at, (0, "", "", None, 0.0, about)
    if isinstance(about, tuple):
        instance, decision, took = about
        return what, choice, at, (instance.instance_id, instance.process, instance.node, decision, took)
    return what, choice, at, (about.instance_id, about.process, about.node)


def _parameters(asked: Any) -> dict[str, Any]:
    return {field: value for field in PARAMETERS if (value := getattr(asked, field, None)) is not None}


def _installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.proto.trace.v1.trace_pb2") is not None
    except ModuleNotFoundError:
        return False
