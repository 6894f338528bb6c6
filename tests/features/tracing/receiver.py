"""A collector for tests: OTLP over HTTP as protobuf, read with the messages of opentelemetry-proto."""

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received(NamedTuple):
    """A span with the attributes of its resource and its own."""

    span: Span
    resource: Mapping[str, Any]
    attributes: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def events(self) -> list[str]:
        return [one.name for one in self.span.events]

    @property
    def node(self) -> str:
        return str(self.resource.get("host.name", ""))


class Tree:
    """The spans of one trace. Building it checks that it is one tree, whose spans lie within their parents."""

    def __init__(self, spans: Iterable[Received]) -> None:
        self.spans = sorted(spans, key=lambda one: (one.span.start_time_unix_nano, -one.span.end_time_unix_nano))
        by_id = {one.span.span_id: one for one in self.spans}
        assert len(by_id) == len(self.spans), "a span came twice"
        roots = [one for one in self.spans if one.span.parent_span_id not in by_id]
        assert len(roots) == 1, [one.name for one in roots]
        (self.root,) = roots
        for one in self.spans:
            assert one.span.end_time_unix_nano >= one.span.start_time_unix_nano, one.name
            parent = by_id.get(one.span.parent_span_id)
            if parent is not None and one.name != "transfer" and one.name != "handoff":
                slack = 1_000_000
                assert one.span.start_time_unix_nano >= parent.span.start_time_unix_nano - slack, one.name
                # Another frontend ends its request after it has sent the last bytes, which may have been read by then.
                elsewhere = one.name.startswith("POST")
                end = one.span.start_time_unix_nano if elsewhere else one.span.end_time_unix_nano
                assert end <= parent.span.end_time_unix_nano + slack, one.name

    def all(self, name: str) -> list[Received]:
        return [one for one in self.spans if one.name == name]

    def one(self, name: str) -> Received:
        (found,) = self.all(name)
        return found

    def parent(self, child: Received) -> Received:
        (found,) = [one for one in self.spans if one.span.span_id == child.span.parent_span_id]
        return found


class Collector:
    """Listens until it is closed. `answer()`: the status of each message. `logs`: messages with log records."""

    def __init__(self, answer: Callable[[], int] = lambda: 200, port: int = 0) -> None:
        self.logs: list[ExportLogsServiceRequest] = []
        self.messages: list[ExportTraceServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []
        self.wrong: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = answer()
                if (
                    self.path not in ("/v1/traces", "/v1/logs")
                    or self.headers["Content-Type"] != "application/x-protobuf"
                ):
                    outer.wrong.append(f"{self.path} {self.headers['Content-Type']}")
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if status == 200 and self.path == "/v1/logs":
                    outer.logs.append(ExportLogsServiceRequest.FromString(body))
                elif status == 200:
                    outer.headers.append(dict(self.headers))
                    outer.messages.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OTEL_EXPORT_ENABLED": "true",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
        }

    def spans(self) -> list[Received]:
        found = []
        for message in list(self.messages):
            for resource in message.resource_spans:
                said = read(resource.resource.attributes)
                found += [
                    Received(span, said, read(span.attributes))
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
        return found

    def records(self) -> list[dict[str, Any]]:
        """Log records: their attributes, and their body."""
        return [
            {**read(record.attributes), "body": record.body.string_value, "ns": record.time_unix_nano}
            for message in list(self.logs)
            for resource in message.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def tree(self, request: str, seconds: float = 10.0) -> Tree:
        """The spans of a request, by its id, once its root has come: all of them come in one message."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            spans = self.spans()
            for one in spans:
                if one.attributes.get("dynamo.request.id") == request:
                    return Tree(other for other in spans if other.span.trace_id == one.span.trace_id)
            time.sleep(0.02)
        raise AssertionError(f"no span of {request} has come: {[one.name for one in self.spans()]}, {self.wrong}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def read(attributes: Iterable[Any]) -> dict[str, Any]:
    """Attributes as Python values."""
    return {one.key: value_of(one.value) for one in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def grpc_serving(service: str, request: Any, response: Any, export: Callable[[Any, Any], Any]) -> Iterator[str]:
    """The URL of a gRPC server whose method Export of `service` calls `export` with a `request` and the context."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(export, request.FromString, response.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait(5)
