"""Sends messages of OTLP by HTTP or gRPC: to collectors of spans, and to those of log records."""

import gzip
import http.client
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from .handed import Collector

TIMEOUT_S = 10.0
"""Seconds for one send, as OpenTelemetry has it."""
LATER = (429, 502, 503, 504)
"""HTTP statuses after which the same message may be sent again."""

Sent = tuple[str, bool]
"""Why a message was not taken, empty: it was; and whether it may be sent again."""
Send = Callable[[bytes, float], Sent]
"""Sends a message within so many seconds."""


class Way(NamedTuple):
    """`send` keeps a connection until `close`."""

    send: Send
    close: Callable[[], object]


def sending(collector: Collector, method: str, response: Any) -> Way:
    """What sends messages to a collector. `method`: of gRPC; `response`: its message."""
    headers = dict(_headers(collector.headers))
    return _grpc(collector, headers, method, response) if collector.protocol == "grpc" else _http(collector, headers)


def _http(collector: Collector, headers: dict[str, str]) -> Way:
    url = urlsplit(collector.url)
    path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
    fixed = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", **headers}
    context = ssl.create_default_context() if url.scheme == "https" else None
    kept: list[http.client.HTTPConnection] = []

    def close() -> None:
        for connection in kept:
            connection.close()
        kept.clear()

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
                close()
                if not again:
                    return f"cannot be reached: {str(error) or type(error).__name__}", True
            else:
                if status < 300:
                    return "", False
                return f"answers {status}", status in LATER
        return "cannot be reached", True

    return Way(send, close)


def _grpc(collector: Collector, headers: dict[str, str], method: str, response: Any) -> Way:
    import grpc  # type: ignore[import-untyped]

    url = urlsplit(collector.url)
    target = f"{url.hostname}:{url.port or 4317}"
    if url.scheme == "https":
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials())
    else:
        channel = grpc.insecure_channel(target)
    call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=response.FromString)
    metadata = [(name.lower(), value) for name, value in headers.items()]
    later = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)

    def send(data: bytes, timeout: float) -> Sent:
        try:
            call(data, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            code = error.code()
            return f"answers {code.name}: {error.details()}"[:300], code in later
        return "", False

    return Way(send, channel.close)


def _headers(given: str) -> Sequence[tuple[str, str]]:
    """Headers as `OTEL_EXPORTER_OTLP_HEADERS` has them: `NAME=VALUE,NAME=VALUE`, values in percent encoding."""
    pairs = [one.partition("=") for one in given.split(",") if "=" in one]
    return [(name.strip(), unquote(value.strip())) for name, _, value in pairs if name.strip()]
