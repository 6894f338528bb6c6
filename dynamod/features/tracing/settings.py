"""Settings of the frontend for traces, with the variables of OpenTelemetry that NVIDIA Dynamo reads."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option, variable

PROTOCOLS = ("grpc", "http/protobuf")


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests have spans, which of them, and where the spans go."""

    otel_export_enabled: Annotated[
        bool,
        Meta(description="sends spans of requests to a collector; needs the extra `otel`"),
        Option("BOOL", "send spans of requests by OTLP (default: off)", "OTEL_EXPORT_ENABLED"),
    ] = False
    otel_exporter_otlp_endpoint: Annotated[
        str,
        Meta(description="URL of the collector; default http://localhost:4317, of http/protobuf http://localhost:4318"),
        variable("OTEL_EXPORTER_OTLP_ENDPOINT", "URL"),
    ] = ""
    otel_exporter_otlp_traces_endpoint: Annotated[
        str,
        Meta(description="URL of the collector for spans, taken as it is: no /v1/traces is added"),
        variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "URL"),
    ] = ""
    otel_exporter_otlp_logs_endpoint: Annotated[
        str,
        Meta(description="URL of the collector for the request trace's sink otel, taken as it is"),
        variable("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "URL"),
    ] = ""
    otel_exporter_otlp_protocol: Annotated[
        Literal["grpc", "http/protobuf"],
        Meta(description="how spans and rows go to the collector: grpc or http/protobuf"),
        variable("OTEL_EXPORTER_OTLP_PROTOCOL"),
    ] = "grpc"
    otel_exporter_otlp_headers: Annotated[
        str,
        Meta(description="headers for the collector: NAME=VALUE, with commas, values in percent encoding"),
        variable("OTEL_EXPORTER_OTLP_HEADERS"),
    ] = ""
    otel_traces_sample_ratio: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="share of the traces begun here that are kept; a client's own choice counts"),
        variable("OTEL_TRACES_SAMPLE_RATIO", "N"),
    ] = 1.0
    otel_service_name: Annotated[
        str, Meta(description="`service.name` of the spans", min_length=1), variable("OTEL_SERVICE_NAME")
    ] = "dynamo"
    otel_excluded_paths: Annotated[
        list[str] | None,
        Meta(description="paths whose requests have no spans; default: those of health, metrics and documents"),
    ] = None
    otel_remote_parent_as_link: Annotated[
        bool, Meta(description="each request begins a trace, with a link to the span of its client")
    ] = False
