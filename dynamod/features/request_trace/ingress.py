"""Writes the rows of one HTTP server."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod.extension.installed import require
from dynamod.http.context import RequestContext
from dynamod.http.records import RecordReader
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.observe.line_writer import LineFile, LineWriter
from dynamod.observe.metrics import Definition
from dynamod.observe.records import RequestRecord

from .files import Stderr
from .rows import HEADERS, end_row, payload_row
from .settings import TraceSettings, words
from .tools import ToolEvents
from .unwritten import Ledger, LedgerFile, told

if TYPE_CHECKING:
    from prometheus_client.core import Metric

FLUSH_S = 2.0
"""Seconds that the last rows get at the end of the server."""
LAST_PUT_S = 4.0
"""Seconds that the last object of the sink s3 gets there."""
PAYLOAD = 4 * 1024 * 1024
"""Bytes of the largest body that a row has."""
LARGE = 8 * 1024
"""Bytes of bodies, or tokens, from which a thread makes the row."""
WAITING = 64 * 1024 * 1024
"""Characters of rows that may wait for a sink."""
ROWS = Definition(
    "counter",
    "request_trace_rows",
    "Rows of the request trace; dropped ones are nowhere, lost ones died with a process that was killed.",
    ("sink", "outcome"),
)

TOOLS = Definition(
    "counter",
    "request_trace_tool_events",
    "Events of tools that harnesses have sent; refused ones are wrong, or of another topic.",
    ("outcome",),
)


class TraceReader(RecordReader):
    """Writes rows for each request to a model. `process`: names it in the log. Raises UserError for wrong settings.

    `tracing`: settings of the feature `tracing`, for the sink `otel`. `tools`: takes events of tools; None: none are
    asked for.
    """

    tokens = True

    def __init__(self, settings: TraceSettings, process: str, tracing: Any = None) -> None:
        records, sinks, packed = settings.records, settings.sinks, settings.packed
        captured = words(settings.request_trace_http_header_capture_list) if "request_payload" in records else []
        self.headers = frozenset((*HEADERS, *captured))
        self.body_bytes = PAYLOAD if "request_payload" in records else 0
        self._makes: list[Callable[[RequestRecord], bytes]] = [end_row] if "request_end" in records else []
        if "request_payload" in records:
            self._makes.append(partial(payload_row, headers=captured))
        path = Path(settings.request_trace_file_path).expanduser()
        self._made: set[asyncio.Future[list[bytes]]] = set()  # rows that threads make
        self._ended = 0  # requests whose records are still to come
        self.lost = told(path, process)
        try:
            self._ledger = Ledger(path) if "file" in sinks else None
        except OSError as error:
            raise UserError(f"request_trace: {error.filename}: {error.strerror}", "free the memory there") from None
        self.writers: dict[str, LineWriter] = {}
        roll = settings.request_trace_file_roll_bytes, settings.request_trace_file_roll_lines
        for sink in sinks:
            what = f"request trace ({sink})"
            if sink == "s3":
                self.writers[sink] = _objects(settings, what)
                continue
            if sink == "file" and self._ledger is not None:
                file: LineFile = LedgerFile(self._ledger, path, packed, *roll)
            else:
                file = _sink(sink, settings, tracing)
            self.writers[sink] = LineWriter(
                file,
                what,
                waiting=WAITING,
                pause=settings.request_trace_file_flush_interval_ms / 1000,
                gathered=settings.request_trace_file_buffer_bytes,
                most=settings.request_trace_capacity,
            )

        self.tools: ToolEvents | None = None
        if "tool" in records and settings.request_trace_tool_events_zmq_endpoint:
            place, topic = settings.request_trace_tool_events_zmq_endpoint, settings.request_trace_tool_events_zmq_topic
            self.tools = ToolEvents(place, topic, lambda row: self._put([row]))

    def ends(self, context: RequestContext) -> None:
        """Note that rows will come."""
        if self._ledger is not None and context.asked_model:
            self._ended += 1
            self._note(self._ledger)

    def take(self, record: RequestRecord) -> None:
        """Write the rows of a record."""
        if not record.model:
            return  # no model was asked
        if self._ledger is not None:
            self._ended -= 1
        size = len(record.request_body or b"") + len(record.response_body or b"")
        size += sum([tokens.count(one.ids) for one in record.prompts]) * record.samples
        size += sum([one.tokens for one in record.choices])
        if size < LARGE:
            self._put(self._rows(record))
            return
        future = asyncio.get_running_loop().run_in_executor(None, self._rows, record)
        self._made.add(future)
        if self._ledger is not None:
            self._note(self._ledger)
        future.add_done_callback(self._is_made)

    def _rows(self, record: RequestRecord) -> list[bytes]:
        return [make(record) for make in self._makes]

    def _is_made(self, future: "asyncio.Future[list[bytes]]") -> None:
        self._made.discard(future)
        if not future.cancelled():
            self._put(future.result())

    def _put(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            for writer in self.writers.values():
                writer.put(row)
        if self._ledger is not None:
            self._note(self._ledger)

    def _note(self, ledger: Ledger) -> None:
        ledger.note(self.writers["file"], (self._ended + len(self._made)) * len(self._makes))

    async def close(self) -> None:
        """Write all rows that were taken."""
        if self._made:
            await asyncio.wait(self._made, timeout=FLUSH_S)
            await asyncio.sleep(0)  # what is made is put
        for sink, writer in self.writers.items():
            await writer.close(LAST_PUT_S if sink == "s3" else FLUSH_S)
        if self._ledger is not None:
            self._ledger.close()

    async def families(self, prefix: str) -> "Iterable[Metric]":
        """The metric of the HTTP server, whose name begins with `prefix`."""
        family = ROWS.family(prefix)
        for sink, writer in self.writers.items():
            for outcome, count in (("written", writer.written), ("dropped", writer.dropped)):
                family.add_metric([sink, outcome], count)
        if "file" in self.writers:
            family.add_metric(["file", "lost"], self.lost)
        if self.tools is None:
            return [family]
        tools = TOOLS.family(prefix)
        for outcome, count in (("taken", self.tools.taken), ("refused", self.tools.refused)):
            tools.add_metric([outcome], count)
        return [family, tools]


def _objects(settings: TraceSettings, what: str) -> LineWriter:
    """What puts objects into a bucket. Its rows are bounded by their bytes. Raises UserError."""
    from .s3 import S3Rows

    bucket, region = settings.request_trace_s3_bucket, settings.request_trace_s3_region
    size = settings.request_trace_s3_roll_uncompressed_bytes
    return LineWriter(
        S3Rows(bucket, region, settings.request_trace_s3_prefix),
        what,
        waiting=max(WAITING, 2 * size),  # an object that is being put, and the next one
        pause=settings.request_trace_s3_flush_interval_ms / 1000,
        gathered=size,
    )


def _sink(name: str, settings: TraceSettings, tracing: Any) -> LineFile:
    """What takes the rows of a sink. Raises UserError."""
    if name == "nats":
        from .nats import NatsRows, nats_settings

        return NatsRows(nats_settings(), settings.request_trace_nats_subject)
    if name == "otel":
        require("tracing", "the sink otel")
        from dynamod.features.tracing.ingress import collector, require_protobuf

        require_protobuf("request_trace_sinks: otel", "leave the sink out")
        from .otel import OtelLogs

        return OtelLogs(collector(tracing, "logs"), settings.request_trace_otel_max_payload_bytes)
    return Stderr()
