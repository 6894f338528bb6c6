"""OpenTelemetry traces: spans of each request over all processes, by OTLP, with NVIDIA Dynamo's variables."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import TracingSettings

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.ingress.api.endpoint import Frontend


def _records(frontend: "Frontend", server: "Server", where: Callable[[], tuple[str, str]]) -> object:
    own = msgspec.convert(frontend.settings, TracingSettings, from_attributes=True)
    if not own.otel_export_enabled:
        return None
    from .ingress import TracingReader

    reader = TracingReader(own, server.metrics)
    server.collectors.append(lambda: reader.families(server.metrics.prefix))
    return reader


FEATURE = Feature(
    "tracing",
    "OpenTelemetry spans of each request by OTLP, off by default; engines get a traceparent",
    records=_records,
    settings={"frontend": TracingSettings},
)
