"""NVIDIA Dynamo's request trace: a row per request in files, with hashes of its blocks, by the same variables."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import RequestTraceSettings

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.ingress.api.endpoint import Frontend


def _records(frontend: "Frontend", server: "Server", where: Callable[[], tuple[str, str]]) -> object:
    own = msgspec.convert(frontend.settings, RequestTraceSettings, from_attributes=True)
    if not own.request_trace:
        return None
    from .reader import TraceReader

    reader = TraceReader(own, where()[1])
    server.collectors.append(lambda: reader.families(server.metrics.prefix))
    return reader


FEATURE = Feature(
    "request_trace",
    "a row per request in the form of NVIDIA Dynamo's request trace, off by default: DYN_REQUEST_TRACE=1",
    records=_records,
    settings={"frontend": RequestTraceSettings},
)
