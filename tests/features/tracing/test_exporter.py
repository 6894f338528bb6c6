"""The exporter process and the pipe to it: what a collector gets, and what is counted when it gets nothing."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dynamod.features.tracing import exporter
from dynamod.features.tracing.exporter import Exporter
from dynamod.features.tracing.handed import Collector as Destination
from dynamod.features.tracing.handed import Told
from dynamod.features.tracing.ingress import TracingReader, collector
from dynamod.features.tracing.pipe import ExporterPipe
from dynamod.features.tracing.settings import TracingSettings
from dynamod.observe.timeline import ASKED, FINISHED, FIRST, PLACED, SENT

from .made import ONE, a_line, placed
from .receiver import Collector, grpc_serving

MARKS = ((ASKED, 11.0, None), (PLACED, 12.0, placed()), (SENT, 12.0, ONE), (FIRST, 14.0, None), (FINISHED, 19.0, None))
LINE = a_line(MARKS)


def destination(url: str, protocol: str = "http/protobuf") -> Destination:
    settings = TracingSettings(otel_exporter_otlp_endpoint=url, otel_exporter_otlp_protocol=protocol)  # type: ignore[arg-type]
    return collector(settings)


def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def pipe() -> Iterator[Callable[[Destination], ExporterPipe]]:
    """Makes pipes, and ends their exporters."""
    made: list[ExporterPipe] = []

    def make(where: Destination) -> ExporterPipe:
        made.append(ExporterPipe(where))
        return made[-1]

    yield make
    for one in made:
        one.end(3)


def test_a_collector_gets_all_and_the_end_waits_for_the_last(pipe: Any) -> None:
    with Collector() as receiver:
        one = pipe(destination(receiver.url))
        assert one.append([LINE] * 300) == 300
        until(lambda: one.told().exported == 300)
        assert len(receiver.messages) < 10, "in batches"
        assert one.append([LINE]) == 1
        one.end(5)
        assert one.told() == Told(301, 0)
        assert len([span for span in receiver.spans() if span.name == "transport"]) == 301
        assert receiver.wrong == []


@pytest.mark.parametrize(("status", "tries"), [(503, exporter.TRIES), (400, 1)])
def test_a_collector_that_refuses(pipe: Any, capfd: Any, status: int, tries: int) -> None:
    asked = []

    def answer() -> int:
        asked.append(1)
        return status

    with Collector(answer) as receiver:
        one = pipe(destination(receiver.url))
        one.append([LINE] * 3)
        until(lambda: one.told() == Told(0, 3))
        one.append([LINE] * 2)
        until(lambda: one.told() == Told(0, 5))
        assert len(asked) == 2 * tries
    said = capfd.readouterr().err
    assert said.count("requests are in no trace so far") == 1, "once a minute"
    assert f"answers {status}; 3 requests" in said


def test_an_exporter_that_is_killed_is_started_again(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamod.features.tracing.pipe.AGAIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, Collector() as receiver:
        one = pipe(destination(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        one.append([LINE] * 4)
        process = one._process
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        one._collector = destination(receiver.url)
        assert one.append([LINE] * 2) == 2
        until(lambda: one.told() == Told(2, 4))


def test_lines_that_are_nonsense_end_nothing(pipe: Any, capfd: Any) -> None:
    with Collector() as receiver:
        one = pipe(destination(receiver.url))
        one.append([b"nonsense\n", LINE, b"\xff\n"])
        until(lambda: one.told() == Told(1, 2))
    assert "a request cannot be read" in capfd.readouterr().err


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(exporter, "WAITING", 2)
    sender: Any = None
    one = Exporter(destination("http://127.0.0.1:1"), sender)
    for _ in range(5):
        one.take(LINE)
    assert one.dropped == 3
    assert "the collector is too slow; 1 requests" in capsys.readouterr().err


@pytest.fixture
def by_grpc() -> Iterator[tuple[str, list[ExportTraceServiceRequest], list[dict[str, Any]]]]:
    """A collector by gRPC: its URL, what it has taken, and the headers. It cannot take the first message."""
    taken: list[ExportTraceServiceRequest] = []
    headers: list[dict[str, Any]] = []

    def export(request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        headers.append(dict(context.invocation_metadata()))
        if len(headers) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        taken.append(request)
        return ExportTraceServiceResponse()

    name = trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"].full_name
    with grpc_serving(name, ExportTraceServiceRequest, ExportTraceServiceResponse, export) as url:
        yield url, taken, headers


def test_by_grpc_with_headers(pipe: Any, by_grpc: Any) -> None:
    url, taken, headers = by_grpc
    settings = TracingSettings(otel_exporter_otlp_endpoint=url, otel_exporter_otlp_headers="X-Key=a%20b, x-other=c")
    one = pipe(collector(settings))
    one.append([LINE])
    until(lambda: one.told() == Told(1, 0))
    (message,) = taken
    spans = [span.name for found in message.resource_spans for scope in found.scope_spans for span in scope.spans]
    assert {"transport", "prefill", "decode"} <= set(spans)
    assert (headers[1]["x-key"], headers[1]["x-other"]) == ("a b", "c")


async def test_a_reader_without_its_collector_holds_nothing_up() -> None:
    """A hundred requests are handed over at once, whatever the collector does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = TracingSettings(
            otel_export_enabled=True, otel_exporter_otlp_endpoint=url, otel_exporter_otlp_protocol="http/protobuf"
        )
        reader = TracingReader(settings)
        began = time.monotonic()
        for _ in range(100):
            reader.writer.put(LINE)
        assert time.monotonic() - began < 1.0
        await asyncio.sleep(0.2)
        await reader.close()
        (family,) = await reader.families("p")
        counts = {one.labels["outcome"]: one.value for one in family.samples}
        assert counts == {"exported": 0.0, "dropped": 100.0}
