"""Rows that go to a collector as log records, and events of tools that become rows."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from dynamod.features.request_trace.otel import OtelLogs
from dynamod.features.request_trace.perfetto import timeline
from dynamod.features.request_trace.rows import read_rows
from dynamod.features.request_trace.settings import TraceSettings
from dynamod.features.request_trace.tools import ToolEvents, tool_row
from dynamod.features.tracing.handed import Collector as Destination
from dynamod.features.tracing.ingress import collector
from dynamod.features.tracing.settings import TracingSettings

from ..tracing.receiver import Collector, grpc_serving, read

SCHEMA = "dynamo.request.trace.v1"


def row(number: int, **payload: Any) -> bytes:
    about = {"request_id": f"r{number}", "model": "sample"}
    event = (
        {"event_type": "request_payload", "payload": about | payload}
        if payload
        else {
            "event_type": "request_end",
            "request": about,
        }
    )
    return json.dumps({"schema": SCHEMA, "event_time_unix_ms": 1000 + number, **event}).encode() + b"\n"


def destination(url: str, protocol: str = "http/protobuf") -> Destination:
    settings = TracingSettings(otel_exporter_otlp_endpoint=url, otel_exporter_otlp_protocol=protocol)  # type: ignore[arg-type]
    return collector(settings, "logs")


def test_rows_become_log_records_as_in_dynamo() -> None:
    with Collector() as receiver:
        sink = OtelLogs(destination(receiver.url), 200)
        assert sink.append([row(1), row(2, endpoint="openai.chat_completion", request={"text": "x" * 500})]) == 2
        sink.close()
        first, second = receiver.records()
        assert receiver.wrong == []
    assert (first["body"], first["event_type"], first["rid"], first["model"]) == (
        *("request_end", "request_end", "r1", "sample"),
    )
    assert (first["ns"], first["schema"], first["payload_complete"]) == (1_001_000_000, SCHEMA, True)
    assert json.loads(first["payload"])["request"]["request_id"] == "r1"
    assert (second["endpoint"], second["payload_complete"]) == ("openai.chat_completion", False)
    assert second["payload_drop_reason"].startswith("otel_payload_too_large:max_bytes=200:actual_bytes=")
    cut = json.loads(second["payload"])["payload"]
    assert cut["payload_complete"] is False
    assert "request" not in cut


def test_what_no_collector_has_is_not_written() -> None:
    with Collector(lambda: 400) as receiver:
        sink = OtelLogs(destination(receiver.url), 1000)
        assert sink.append([row(1)]) == 0
        assert "answers 400" in sink.failure
        sink.close()
        url = receiver.url
    sink = OtelLogs(destination(url), 1000)
    assert sink.append([row(1)]) == 0
    assert "cannot be reached" in sink.failure
    long = OtelLogs(destination(url), 10)
    assert long.append([row(1)]) == 0
    assert long.failure == "1 rows have more than 10 bytes"


@pytest.fixture
def grpc_collector() -> Iterator[tuple[str, list[ExportLogsServiceRequest]]]:
    """A collector by gRPC: its URL, and what it has taken."""
    taken: list[ExportLogsServiceRequest] = []

    def export(request: ExportLogsServiceRequest, _context: Any) -> ExportLogsServiceResponse:
        taken.append(request)
        return ExportLogsServiceResponse()

    name = logs_service_pb2.DESCRIPTOR.services_by_name["LogsService"].full_name
    with grpc_serving(name, ExportLogsServiceRequest, ExportLogsServiceResponse, export) as url:
        yield url, taken


def test_rows_by_grpc(grpc_collector: tuple[str, list[ExportLogsServiceRequest]]) -> None:
    url, taken = grpc_collector
    assert OtelLogs(destination(url, "grpc"), 1000).append([row(1), row(2)]) == 2
    (message,) = taken
    records = message.resource_logs[0].scope_logs[0].log_records
    assert [read(one.attributes)["rid"] for one in records] == ["r1", "r2"]


EVENT = {
    "schema": SCHEMA,
    "event_type": "tool_end",
    "event_time_unix_ms": 5000,
    "agent_context": {"session_id": "run", "more": 1},
    "tool": {"tool_call_id": "call-1", "tool_class": "web_search", "status": "ok", "duration_ms": 400.5},
}


def frames(event: Any, topic: bytes = b"") -> list[bytes]:
    return [topic, (7).to_bytes(8, "big"), msgspec.msgpack.encode(event)]


def test_events_of_tools_are_rows() -> None:
    made = tool_row(frames(EVENT))
    assert made is not None
    assert json.loads(made) == {
        "schema": SCHEMA,
        "event_type": "tool_end",
        "event_time_unix_ms": 5000,
        "event_source": "harness",
        "agent_context": {"session_id": "run"},
        "tool": EVENT["tool"] | {"status": "succeeded"},  # type: ignore[operator]
    }
    beside = {name: value for name, value in EVENT.items() if name != "agent_context"}
    made = tool_row(frames({**beside, "session_id": "run", "parent_session_id": "all"}), "")
    assert made is not None
    assert json.loads(made)["agent_context"] == {"session_id": "run", "parent_session_id": "all"}
    assert tool_row(frames(EVENT, b"other"), "mine") is None
    assert tool_row(frames(EVENT, b"mine"), "mine") is not None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([b"", b""], "2 frames"),
        ([b"", b"", b"\xc1"], "MessagePack"),
        (frames(EVENT | {"schema": "dynamo.agent.trace.v1"}), "its schema is 'dynamo.agent.trace.v1'"),
        (frames(EVENT | {"event_type": "request_end"}), "event_type"),
        (frames(EVENT | {"agent_context": None}), "session_id"),
        (frames(EVENT | {"agent_context": {"session_id": "x" * 300}}), "session_id"),
        (frames(EVENT | {"tool": {"tool_call_id": "", "tool_class": "x"}}), "tool_call_id"),
        (frames(EVENT | {"tool": {"tool_call_id": "x", "tool_class": "x", "status": "so-so"}}), "tool.status"),
        ([b"", b"", b"x" * 70_000], "70000 bytes"),
    ],
)
def test_what_is_no_event(wrong: list[bytes], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tool_row(wrong)


async def test_harnesses_push_and_the_next_process_takes_the_place_over(tmp_path: Path, until: Any) -> None:
    place, rows = f"ipc://{tmp_path}/tools", list[bytes]()
    first, second = (ToolEvents(place, "", rows.append) for _ in range(2))
    task = asyncio.ensure_future(first.run())
    with zmq.asyncio.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 0
        push.connect(place)
        await push.send_multipart(frames(EVENT))
        await push.send_multipart([b"nothing"])
        await push.send_multipart(frames(EVENT | {"event_type": "tool_error"}))
        await until(lambda: len(rows) == 2)
        assert (first.taken, first.refused) == (2, 1)
        task.cancel()
        await asyncio.wait([task])
        task = asyncio.ensure_future(second.run())
        async with asyncio.timeout(20):
            while not second.taken:
                await push.send_multipart(frames(EVENT))
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])


def test_tools_are_on_the_timeline() -> None:
    request = {"request_id": "r", "model": "m", "request_received_ms": 4000, "total_time_ms": 500}
    agent = {"session_id": "run"}
    rows = [
        {"event_type": "request_end", "agent_context": agent, "request": request},
        {**EVENT, "agent_context": agent},
        {**EVENT, "event_type": "tool_start", "agent_context": agent},
    ]
    slices = [one for one in timeline(rows)["traceEvents"] if one["ph"] == "X"]
    assert [(one["name"], one["cat"], one["ts"], one["dur"]) for one in slices] == [
        ("r", "request", 0.0, 500_000),
        ("web_search", "tool", 599_500.0, 400_500.0),
    ]


def test_names_of_sinks() -> None:
    assert list(TraceSettings(request_trace_sinks="nats,otel,file").sinks) == ["nats", "otel", "file"]


def test_half_of_a_surrogate_pair_ends_no_sink_and_no_reader(tmp_path: Path) -> None:
    line = json.dumps(json.loads(row(1, request={"text": "\ud83d"}))).encode() + b"\n"
    with Collector() as receiver:
        sink = OtelLogs(destination(receiver.url), 1000)
        assert sink.append([line, row(2)]) == 2
        sink.close()
        assert len(receiver.records()) == 2
    (tmp_path / "t").write_bytes(line + row(2))
    assert len(list(read_rows([tmp_path / "t"]))) == 2
