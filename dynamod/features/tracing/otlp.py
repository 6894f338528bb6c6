"""OTLP: batches of spans as protobuf. Runs in the exporter process."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from .handed import Collector, Handed
from .sending import TIMEOUT_S, sending
from .spans import Place, Tree, attribute

SCOPE = "dynamod"
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Sender:
    """Sends batches to a collector. `timeout`: seconds of one send."""

    timeout = TIMEOUT_S

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.send = sending(collector, _METHOD, ExportTraceServiceResponse).send

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
