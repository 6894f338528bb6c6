"""The request trace by the real commands: complete through SIGTERM, and honest about a kill."""

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import nats
import zmq

from dynamod.features.request_trace.rows import read_rows
from tests.e2e.together import together

from ...tracing.receiver import Collector
from ..bucket import Bucket
from ..test_perfetto import wrong

CONFIG = """
graph: graphs.agg:Frontend
Frontend: {port: 0, request_trace: true, request_trace_file_path: FOLDER/run, request_trace_file_roll_lines: 20}
Worker: {engine: echo_core, model: sample}
"""


def served(machine: Any, **env: str) -> tuple[Any, str, Path]:
    """The command, its URL, and the folder of the trace."""
    folder = machine.folder / "traces"
    (machine.folder / "trace.yaml").write_text(CONFIG.replace("FOLDER", str(folder)))
    command = machine.start("dynamo", "serve", "-f", "trace.yaml", **env)
    return command, command.ready(), folder


def rows(folder: Path) -> int:
    return len(list(read_rows(sorted(folder.glob("run.*")))))


@together
def test_sigterm_loses_no_row_and_the_files_can_be_used(machine: Any) -> None:
    command, url, folder = served(machine)
    for _ in range(60):
        machine.chat(url, "hello", max_tokens=4)
    text = machine.ask(url, "/metrics")[1]
    counts = re.findall(r"^dynamo_frontend_request_trace_rows_total\{.*\} ([\d.]+)$", text, re.MULTILINE)
    assert sum(map(float, counts)) <= 60
    command.end(signal.SIGTERM)
    files = sorted(folder.glob("run.*"))
    assert len(files) >= 3
    assert rows(folder) == 60
    out = machine.folder / "timeline.json"
    assert machine.run("dynamo", "trace", "perfetto", *files, "--out", out).code == 0
    assert out.stat().st_size > 1000
    assert wrong(out.read_text()) == []
    replayed = machine.run("dynamo", "bench", "replay", files[0], "--workers", "2")
    assert replayed.code == 0, replayed.err


@together
def test_sigterm_puts_the_last_object(machine: Any) -> None:
    """Also while the store takes its time: rows of an interval that has not ended are not lost."""
    with Bucket().running() as bucket:
        where = {"DYN_REQUEST_TRACE_SINKS": "s3", "DYN_REQUEST_TRACE_S3_BUCKET": "rows"}
        where |= {"DYN_REQUEST_TRACE_S3_FLUSH_INTERVAL_MS": "600000", "DYN_REQUEST_TRACE_S3_PREFIX": "run"}
        command, url, folder = served(machine, **where, **bucket.environment)
        bucket.slow = 1.0
        for _ in range(30):
            machine.chat(url, "hello", max_tokens=4)
        assert bucket.objects == {}
        command.end(signal.SIGTERM)
        assert bucket.refused == []
        ((name, data),) = bucket.objects.items()
    assert name.startswith("rows/run/date=")
    assert len(gzip.decompress(data).splitlines()) == 30
    assert not folder.exists()
    words = ("serve", "-f", "trace.yaml")
    where["DYN_REQUEST_TRACE_S3_BUCKET"] = ""
    assert "request_trace_s3_bucket: the sink s3 needs" in machine.run("dynamo", *words, **where).err


@together
def test_a_kill_loses_the_last_interval_and_the_next_process_says_so(machine: Any) -> None:
    """Each answered request is in a file, or among the rows that the next process counts as lost."""
    command, url, folder = served(machine)
    over, answered = threading.Event(), list[int]()

    def load() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):  # killed under it
            while not over.is_set():
                machine.chat(url, "hello", max_tokens=4)
                answered.append(1)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    machine.until(lambda: rows(folder) > 20, 30)
    os.kill(machine.row("Frontend")["pid"], signal.SIGKILL)
    over.set()
    for thread in threads:
        thread.join(30)
    machine.until(lambda: machine.serves(url), 30)
    machine.chat(url, "hello", max_tokens=4)
    command.end(signal.SIGTERM)
    found = rows(folder) - 1  # without the one after the kill
    said = re.search(r"a process was killed; up to (\d+) of its (\d+) rows are in no file", command.err)
    lost, taken = (int(said[1]), int(said[2])) if said else (0, found)
    assert taken >= len(answered) - 3, "the end of an answer and its row are not one moment"
    assert found + lost >= taken, "what is not in a file is said"
    assert found >= 20


@together
def test_all_sinks_have_all_rows_and_tools_too(machine: Any, servers: Any) -> None:
    place, got = f"ipc://{machine.folder}/tools", list[bytes]()
    ready, over = threading.Event(), threading.Event()

    async def subscribe() -> None:
        client = await nats.connect(servers.env["NATS_SERVER"])

        async def take(message: Any) -> None:
            got.append(message.data)

        await client.subscribe("dynamo.request_trace.v1", cb=take)
        await client.flush()
        ready.set()
        await asyncio.to_thread(over.wait, 120)
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(subscribe()))
    thread.start()
    assert ready.wait(20)
    event = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "tool_end",
        "event_time_unix_ms": 5000,
        "session_id": "run",
        "tool": {"tool_call_id": "call-1", "tool_class": "web_search", "duration_ms": 400.5},
    }
    try:
        with Collector() as collector, zmq.Context() as context, context.socket(zmq.PUSH) as push:
            push.linger = 0
            told = {
                **collector.environment,
                **servers.env,
                "OTEL_EXPORT_ENABLED": "false",
                "DYN_REQUEST_TRACE_SINKS": "file,nats,otel",
                "DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT": place,
            }
            command, url, folder = served(machine, **told)
            push.connect(place)
            push.send_multipart([b"agent-tool-events", bytes(8), msgspec.msgpack.encode(event)])
            for _ in range(10):
                machine.chat(url, "hello", max_tokens=4)
            machine.until(
                lambda: 'request_trace_tool_events_total{outcome="taken"} 1.0' in machine.ask(url, "/metrics")[1]
            )
            command.end(signal.SIGTERM)
            assert collector.wrong == []
            sent = [json.loads(record["payload"]) for record in collector.records()]
            assert collector.messages == [], "no spans"
    finally:
        over.set()
        thread.join(30)
    written = list(read_rows(sorted(folder.glob("run.*"))))
    assert len(written) == 11
    assert [row["tool"]["tool_call_id"] for row in written if "tool" in row] == ["call-1"]

    def order(found: Iterable[Any]) -> list[str]:
        return sorted(json.dumps(one, sort_keys=True) for one in found)

    assert order(map(json.loads, got)) == order(sent) == order(written)


def test_a_sink_that_cannot_be_reached_holds_no_request_up(machine: Any) -> None:
    """Rows are dropped and counted, and the log says so once."""
    command, url, _ = served(
        machine,
        DYN_REQUEST_TRACE_SINKS="nats,otel",
        NATS_SERVER=f"nats://127.0.0.1:{machine.port()}",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{machine.port()}",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    for _ in range(20):
        machine.chat(url, "hello", max_tokens=4)
    text = ""

    def dropped() -> bool:
        nonlocal text
        text = machine.ask(url, "/metrics")[1]
        found = re.findall(r'request_trace_rows_total\{outcome="dropped",sink="(\w+)"\} 20\.0', text)
        return sorted(found) == ["nats", "otel"]

    machine.until(dropped, 30)
    command.end()
    for sink in ("nats", "otel"):
        said = [line for line in command.err.splitlines() if f"request trace ({sink}): " in line]
        assert sum("lines were dropped so far" in line for line in said) == 1, said
