"""Writes the rows of the records of one HTTP server."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dynamod.http.records import RecordReader
from dynamod.message.errors import UserError
from dynamod.observe.line_writer import LineWriter
from dynamod.observe.metrics import Definition
from dynamod.observe.records import RequestRecord

from .files import Stderr, TraceFiles
from .rows import HEADERS, end_row, line, payload_row
from .settings import END, FILE, PAYLOAD, RequestTraceSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BODY = 1024 * 1024
"""Bytes of the largest body in a row of payloads."""
FLUSH_S = 2.0
"""Seconds that the last rows get at the end of the server."""
METRIC = Definition(
    "counter", "request_trace_rows", "Rows of the request trace; dropped ones are nowhere.", ("sink", "outcome")
)


class TraceReader(RecordReader):
    """Writes rows for each request to a model. `process`: names the files. Raises UserError."""

    tokens = True

    def __init__(self, settings: RequestTraceSettings, process: str) -> None:
        self._kinds, self._captured = settings.kinds(), settings.captured()
        self.body_bytes = BODY if PAYLOAD in self._kinds else 0
        self.headers = {*HEADERS, *(self._captured if PAYLOAD in self._kinds else ())}
        self.writers = {
            sink: LineWriter(
                _files(settings, process) if sink == FILE else Stderr(),
                "request trace",
                pause=settings.request_trace_file_flush_interval_ms / 1000,
                gathered=settings.request_trace_file_buffer_bytes,
                most=settings.request_trace_capacity,
            )
            for sink in sorted(settings.sinks())
        }

    def take(self, record: RequestRecord) -> None:
        """Write the rows of a record; other requests than those to models have none."""
        if not record.model:
            return
        rows = [end_row(record)] if END in self._kinds else []
        if PAYLOAD in self._kinds:
            rows.append(payload_row(record, self._captured))
        for data in map(line, rows):
            for writer in self.writers.values():
                writer.put(data)

    async def close(self) -> None:
        """Write all rows that were taken."""
        for writer in self.writers.values():
            await writer.close(FLUSH_S)

    async def families(self, prefix: str) -> "Iterable[Metric]":
        """The metric of the HTTP server, whose name begins with `prefix`."""
        family = METRIC.family(prefix)
        for sink, writer in self.writers.items():
            for outcome, count in (("written", writer.written), ("dropped", writer.dropped)):
                family.add_metric([sink, outcome], count)
        return [family]


def _files(settings: RequestTraceSettings, process: str) -> TraceFiles:
    path = Path(settings.request_trace_file_path)
    if not path.name or not path.parent.is_dir():
        hint = "name a folder that is there, and the beginning of a file's name"
        raise UserError(f"request_trace_file_path: {path.parent} is no folder", hint)
    suffix = ".jsonl.gz" if settings.request_trace_file_format == "jsonl_gz" else ".jsonl"
    size, lines = settings.request_trace_file_roll_bytes, settings.request_trace_file_roll_lines
    return TraceFiles(path, process or "frontend", suffix, size, lines)
