"""Rows as log records of OTLP, in NVIDIA Dynamo's form: the row is the attribute `payload`."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO

from dynamod.features.tracing.handed import Collector
from dynamod.features.tracing.sending import sending
from dynamod.features.tracing.spans import attribute

SCOPE = "dynamo.request_trace"
SEND_S = 2.0
"""Seconds for one batch, tries included: a collector that hangs must not hold up the end of a process."""
AGAIN_S = 0.2
"""Seconds until a collector that cannot take a batch now is asked again."""
_METHOD = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


class OtelLogs:
    """A `observe.line_writer.LineFile` whose lines go to a collector. `longest`: bytes of a row.

    A longer row with prompt and answer goes without these, and says so; other longer rows are dropped.
    """

    def __init__(self, collector: Collector, longest: int) -> None:
        self.failure = ""
        self._collector, self._longest = collector, longest
        self._way = sending(collector, _METHOD, ExportLogsServiceResponse)

    @property
    def path(self) -> Path:
        """For the log."""
        return Path(self._collector.url)

    def append(self, lines: Sequence[bytes]) -> int:
        """Send rows. Returns how many the collector has taken."""
        self.failure = ""
        message = ExportLogsServiceRequest()
        found = message.resource_logs.add()
        said = {"service.name": self._collector.service, "service.version": self._collector.version}
        found.resource.attributes.extend(attribute(*one) for one in said.items())
        scope = found.scope_logs.add()
        scope.scope.name, scope.scope.version = SCOPE, self._collector.version
        for row, complete, why in self._fitting(lines):
            self._add(scope.log_records.add(), row, complete, why)
        count = len(scope.log_records)
        if count < len(lines):
            self.failure = f"{len(lines) - count} rows have more than {self._longest} bytes"
        return count if not count or self._sent(message.SerializeToString()) else 0

    def close(self) -> None:
        """End the connection."""
        self._way.close()

    def _fitting(self, lines: Sequence[bytes]) -> Iterator[tuple[bytes, bool, str]]:
        """Rows that may be sent, whether they are whole, and why not."""
        for line in lines:
            row = line.rstrip(b"\n")
            if len(row) <= self._longest:
                yield row, True, ""
                continue
            why = f"otel_payload_too_large:max_bytes={self._longest}:actual_bytes={len(row)}"
            value = json.loads(row)
            if (payload := value.get("payload")) is None:
                continue
            for name in ("request", "response", "http_request_headers"):
                payload.pop(name, None)
            payload |= {"payload_complete": False, "payload_drop_reason": why}
            yield json.dumps(value).encode(), False, why

    @staticmethod
    def _add(record: Any, row: bytes, complete: bool, why: str) -> None:
        value = json.loads(row)  # msgspec refuses halves of surrogate pairs, which clients may send
        about = value.get("request") or value.get("payload") or {}
        record.time_unix_nano = int(value["event_time_unix_ms"]) * 1_000_000
        record.observed_time_unix_nano = time.time_ns()
        record.severity_number, record.severity_text = SEVERITY_NUMBER_INFO, "INFO"
        record.body.string_value = value["event_type"]
        attributes = {
            "schema": value["schema"],
            "event_type": value["event_type"],
            "rid": about.get("request_id"),
            "model": about.get("model"),
            "endpoint": (value.get("payload") or {}).get("endpoint"),
            "payload_complete": complete,
            "payload_drop_reason": why or None,
            "payload": row.decode(),
        }
        record.attributes.extend(attribute(*one) for one in attributes.items() if one[1] is not None)

    def _sent(self, data: bytes) -> bool:
        until = time.monotonic() + SEND_S
        while (left := until - time.monotonic()) > 0:
            self.failure, again = self._way.send(data, left)
            if not self.failure:
                return True
            if not again:
                break
            time.sleep(min(AGAIN_S, left))
        return False
