"""OTLP: batches of spans as protobuf, by HTTP or gRPC. Runs in the exporter process."""

import gzip
import http.client
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from .handed import Collector, Handed
from .spans import Place, Tree, attribute

TIMEOUT_S = 10.0
"""Seconds for one send, as OpenTelemetry has it."""
LATER = (429, 502, 503, 504)
"""HTTP statuses after which the same spans may be sent again."""
SCOPE = "dynamod"
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

Sent = tuple[str, bool]
"""Why spans were not taken, empty: they were; and whether they may be sent again."""


class Sender:
    """Sends batches to a collector. `timeout`: seconds of one send."""

    timeout = TIMEOUT_S

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._headers = dict(_headers(collector.headers))
        way = _grpc if collector.protocol == "grpc" else _http
        self.send: Callable[[bytes, float], Sent] = way(collector, self._headers)

    def encoded(self, batch: Sequence[Handed]) -> bytes:
        """The message of a batch: spans by the place where they were."""
        message, scopes = ExportTraceServiceRequest(), dict[Place, Any]()
        for handed in batch:
            for place, spans in Tree(handed).spans.items():
                scope = scopes.get(place)
                if scope is None:
                    scope = scopes[place] = self._scope(message, place)
                scope.spans.extend(spans)
        return bytes(message.SerializeToString())

    def _scope(self, message: ExportTraceServiceRequest, place: Place) -> Any:
        """Where spans of a place go."""
        node, process = place
        found = message.resource_spans.add()
        said = {"service.name": self._collector.service, "service.version": self._collector.version}
        said |= {"service.instance.id": process, "host.name": node}
        found.resource.attributes.extend(attribute(name, value) for name, value in said.items() if value)
        scope = found.scope_spans.add()
        scope.scope.name, scope.scope.version = SCOPE, self._collector.version
        return scope


def _http(collector: Collector, headers: dict[str, str]) -> Callable[[bytes, float], Sent]:
    url = urlsplit(collector.url)
    path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
    fixed = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", **headers}
    context = ssl.create_default_context() if url.scheme == "https" else None
    kept: list[http.client.HTTPConnection] = []

    def post(data: bytes, timeout: float) -> int:
        if not kept:
            where = url.hostname or "localhost", url.port
            if context is not None:
                kept.append(http.client.HTTPSConnection(*where, timeout=timeout, context=context))
            else:
                kept.append(http.client.HTTPConnection(*where, timeout=timeout))
        connection = kept[0]
        connection.timeout = timeout
        connection.request("POST", path, data, fixed)
        with connection.getresponse() as response:
            response.read(65536)
            if response.will_close:
                kept.clear()
            return response.status

    def send(data: bytes, timeout: float) -> Sent:
        packed = gzip.compress(data, 1)
        for again in (bool(kept), False):  # a collector may have closed the connection that was kept
            try:
                status = post(packed, timeout)
            except (OSError, http.client.HTTPException) as error:
                for connection in kept:
                    connection.close()
                kept.clear()
                if not again:
                    return f"cannot be reached: {str(error) or type(error).__name__}", True
            else:
                if status < 300:
                    return "", False
                return f"answers {status}", status in LATER
        return "cannot be reached", True

    return send


def _grpc(collector: Collector, headers: dict[str, str]) -> Callable[[bytes, float], Sent]:
    import grpc  # type: ignore[import-untyped]

    url = urlsplit(collector.url)
    target = f"{url.hostname}:{url.port or 4317}"
    if url.scheme == "https":
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials())
    else:
        channel = grpc.insecure_channel(target)
    call = channel.unary_unary(
        _METHOD, request_serializer=bytes, response_deserializer=ExportTraceServiceResponse.FromString
    )
    metadata = [(name.lower(), value) for name, value in headers.items()]
    later = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def send(data: bytes, timeout: float) -> Sent:
        try:
            call(data, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            code = error.code()
            return f"answers {code.name}: {error.details()}"[:300], code in later
        return "", False

    return send


def _headers(given: str) -> Sequence[tuple[str, str]]:
    """Headers as `OTEL_EXPORTER_OTLP_HEADERS` has them: `NAME=VALUE,NAME=VALUE`, values in percent encoding."""
    pairs = [one.partition("=") for one in given.split(",") if "=" in one]
    return [(name.strip(), unquote(value.strip())) for name, _, value in pairs if name.strip()]
