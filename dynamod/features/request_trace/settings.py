"""Settings of the frontend that the request trace adds, with NVIDIA Dynamo's variables."""

import re
from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option, variable
from dynamod.message.errors import UserError

RECORDS = ("request_end", "request_payload")
SINKS = ("file", "stderr", "nats", "otel", "s3")
FORMATS = ("jsonl_gz", "jsonl")
Words = str | list[str]


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests are traced, what rows there are, and where they go."""

    request_trace: Annotated[
        bool,
        Meta(description="writes a row of `dynamo.request.trace.v1` per request"),
        Option("BOOL", "writes a row per request as NVIDIA Dynamo does (default: off)", "DYN_REQUEST_TRACE"),
    ] = False
    request_trace_records: Annotated[
        Words,
        Meta(description="kinds of rows, with commas: request_end (default), request_payload (prompts and answers)"),
        variable("DYN_REQUEST_TRACE_RECORDS"),
    ] = ""
    request_trace_sinks: Annotated[
        Words,
        Meta(description="where rows go, with commas: file, stderr, nats, otel, s3"),
        variable("DYN_REQUEST_TRACE_SINKS"),
    ] = "file"
    request_trace_file_path: Annotated[
        str,
        Meta(description="the file of jsonl; of jsonl_gz what the names of the files begin with", min_length=1),
        variable("DYN_REQUEST_TRACE_FILE_PATH", "FILE"),
    ] = "/tmp/dynamo-request-trace"
    request_trace_file_format: Annotated[
        str,
        Meta(description="jsonl_gz: PATH.NNNNNN.jsonl.gz; jsonl: PATH itself"),
        variable("DYN_REQUEST_TRACE_FILE_FORMAT"),
    ] = "jsonl_gz"
    request_trace_capacity: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="rows that may wait for a sink"),
        variable("DYN_REQUEST_TRACE_CAPACITY", "N"),
    ] = 1024
    request_trace_file_buffer_bytes: Annotated[
        int,
        Meta(ge=1, le=2**30, description="bytes that are written at once"),
        variable("DYN_REQUEST_TRACE_FILE_BUFFER_BYTES", "N"),
    ] = 1_048_576
    request_trace_file_flush_interval_ms: Annotated[
        int,
        Meta(ge=1, le=3_600_000, description="milliseconds for which rows are gathered; a kill loses these at most"),
        variable("DYN_REQUEST_TRACE_FILE_FLUSH_INTERVAL_MS", "N"),
    ] = 1000
    request_trace_file_roll_bytes: Annotated[
        int,
        Meta(ge=1, description="uncompressed bytes after which a new file begins"),
        variable("DYN_REQUEST_TRACE_FILE_ROLL_BYTES", "N"),
    ] = 268_435_456
    request_trace_file_roll_lines: Annotated[
        int,
        Meta(ge=0, description="rows after which a new file begins; 0: any number"),
        variable("DYN_REQUEST_TRACE_FILE_ROLL_LINES", "N"),
    ] = 0
    request_trace_nats_subject: Annotated[
        str,
        Meta(description="subject of the sink nats; NATS_SERVER says where NATS is", pattern=r"^[^\s*>]+$"),
        variable("DYN_REQUEST_TRACE_NATS_SUBJECT"),
    ] = "dynamo.request_trace.v1"
    request_trace_otel_max_payload_bytes: Annotated[
        int,
        Meta(ge=1, description="bytes of a row of the sink otel; a longer one goes without prompt and answer"),
        variable("DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES", "N"),
    ] = 4_194_304
    request_trace_s3_bucket: Annotated[
        str,
        Meta(description="bucket of the sink s3, which needs the extra trace; credentials are AWS's variables"),
        variable("DYN_REQUEST_TRACE_S3_BUCKET"),
    ] = ""
    request_trace_s3_region: Annotated[
        str,
        Meta(description="region of the bucket; default: AWS_REGION or AWS_DEFAULT_REGION, else us-east-1"),
        variable("DYN_REQUEST_TRACE_S3_REGION"),
    ] = ""
    request_trace_s3_prefix: Annotated[
        str,
        Meta(description="what the names of objects begin with; default: the bucket's root"),
        variable("DYN_REQUEST_TRACE_S3_PREFIX"),
    ] = ""
    request_trace_s3_roll_uncompressed_bytes: Annotated[
        int,
        Meta(ge=1, le=2**28, description="uncompressed bytes of rows after which an object is put"),
        variable("DYN_REQUEST_TRACE_S3_ROLL_UNCOMPRESSED_BYTES", "N"),
    ] = 67_108_864
    request_trace_s3_flush_interval_ms: Annotated[
        int,
        Meta(ge=1, le=3_600_000, description="milliseconds for which the rows of an object are gathered"),
        variable("DYN_REQUEST_TRACE_S3_FLUSH_INTERVAL_MS", "N"),
    ] = 10_000
    request_trace_tool_events_zmq_endpoint: Annotated[
        str,
        Meta(description="ZMQ place for events of tools, like tcp://127.0.0.1:20390; needs the extra trace"),
        variable("DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT", "URL"),
    ] = ""
    request_trace_tool_events_zmq_topic: Annotated[
        str,
        Meta(description="first frame of events of tools that are taken; default: any"),
        variable("DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_TOPIC"),
    ] = ""
    request_trace_http_header_capture_list: Annotated[
        Words,
        Meta(description="headers of requests that payload rows have, as they came, with commas"),
        variable("DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST"),
    ] = ""

    @property
    def on(self) -> bool:
        """Whether rows are written."""
        return self.request_trace or bool(words(self.request_trace_records))

    @property
    def records(self) -> Collection[str]:
        """Kinds of rows; `tool` gives none without a place for events. Raises UserError."""
        found = words(self.request_trace_records) or ["request_end", "tool"]
        _check("request_trace_records", found, (*RECORDS, "tool"))
        return found

    @property
    def sinks(self) -> Collection[str]:
        """Where rows go. Raises UserError."""
        found = [one for one in words(self.request_trace_sinks) if one not in FORMATS]
        found += ["file"] * (len(found) < len(words(self.request_trace_sinks)))
        _check("request_trace_sinks", found, SINKS)
        return dict.fromkeys(found or ["file"])

    @property
    def packed(self) -> bool:
        """Whether files are compressed; a format may stand among the sinks, as earlier. Raises UserError."""
        _check("request_trace_file_format", [self.request_trace_file_format], FORMATS)
        formats = [one for one in words(self.request_trace_sinks) if one in FORMATS]
        return [self.request_trace_file_format, *formats][-1] == "jsonl_gz"


def words(given: Words) -> list[str]:
    """A list of words in small letters; as text they have commas or spaces between them."""
    found = re.split(r"[,\s]+", given) if isinstance(given, str) else given
    return [word for one in found if (word := one.strip().lower())]


def _check(name: str, found: Collection[str], known: Collection[str]) -> None:
    for one in found:
        if one not in known:
            raise UserError(f"{name}: {one!r} is not known", f"known: {', '.join(known)}")
