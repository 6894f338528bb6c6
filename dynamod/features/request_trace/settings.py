"""Settings of the frontend that the request trace adds, with the variables of NVIDIA Dynamo."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option
from dynamod.message.errors import UserError

END, PAYLOAD, TOOL = "request_end", "request_payload", "tool"
RECORDS = (END, PAYLOAD, TOOL)
FILE, STDERR = "file", "stderr"
SINKS = (FILE, STDERR)


def _variable(name: str, metavar: str = "TEXT") -> Option:
    return Option(metavar, "", f"DYN_REQUEST_TRACE{name}", flag=False)


class RequestTraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether rows are written, which, and where."""

    request_trace: Annotated[
        bool, Meta(description="writes a row per request to a model, for replays and analysis"), _variable("", "BOOL")
    ] = False
    request_trace_records: Annotated[
        str,
        Meta(description="kinds of rows, with commas: request_end; request_payload has prompts and answers; tool"),
        _variable("_RECORDS"),
    ] = f"{END},{TOOL}"
    request_trace_sinks: Annotated[
        str, Meta(description="where rows go, with commas: file, stderr"), _variable("_SINKS")
    ] = FILE
    request_trace_file_path: Annotated[
        str,
        Meta(description="beginning of the names of the files: PATH.PROCESS.NUMBER.jsonl or .jsonl.gz"),
        _variable("_FILE_PATH"),
    ] = "/tmp/dynamo-request-trace"
    request_trace_file_format: Annotated[
        Literal["jsonl_gz", "jsonl"], Meta(description="compressed or plain lines"), _variable("_FILE_FORMAT")
    ] = "jsonl_gz"
    request_trace_capacity: Annotated[
        int,
        Meta(ge=1, description="rows that may be on their way to a sink; further ones are dropped"),
        _variable("_CAPACITY", "N"),
    ] = 1024
    request_trace_file_buffer_bytes: Annotated[
        int, Meta(ge=1, description="bytes of rows that are written at once"), _variable("_FILE_BUFFER_BYTES", "N")
    ] = 1_048_576
    request_trace_file_flush_interval_ms: Annotated[
        int,
        Meta(ge=1, description="milliseconds after which rows are written; a process that is killed loses these"),
        _variable("_FILE_FLUSH_INTERVAL_MS", "N"),
    ] = 1000
    request_trace_file_roll_bytes: Annotated[
        int, Meta(ge=1, description="bytes of rows from which the next file begins"), _variable("_FILE_ROLL_BYTES", "N")
    ] = 268_435_456
    request_trace_file_roll_lines: Annotated[
        int,
        Meta(ge=0, description="rows from which the next file begins; 0: any number"),
        _variable("_FILE_ROLL_LINES", "N"),
    ] = 0
    request_trace_http_header_capture_list: Annotated[
        str,
        Meta(description="headers of requests that rows of payloads have, with commas, as they are"),
        _variable("_HTTP_HEADER_CAPTURE_LIST"),
    ] = ""

    def kinds(self) -> frozenset[str]:
        """The kinds of rows. Raises UserError."""
        return _words("request_trace_records", self.request_trace_records, RECORDS)

    def sinks(self) -> frozenset[str]:
        """Where rows go. Raises UserError."""
        return _words("request_trace_sinks", self.request_trace_sinks, SINKS)

    def captured(self) -> tuple[str, ...]:
        """Names of headers for rows of payloads, in small letters."""
        return tuple(name.strip().lower() for name in self.request_trace_http_header_capture_list.split(",") if name)


def _words(name: str, text: str, known: tuple[str, ...]) -> frozenset[str]:
    found = frozenset(word.strip() for word in text.split(",") if word.strip())
    if unknown := sorted(found - {*known}):
        raise UserError(f"{name} has '{unknown[0]}'", f"known: {', '.join(known)}")
    if not found:
        raise UserError(f"{name} is empty", f"known: {', '.join(known)}")
    return found
