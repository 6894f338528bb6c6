"""The request trace: a row of `dynamo.request.trace.v1` per request, as NVIDIA Dynamo writes it, and `dynamo trace`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import TraceSettings

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.ingress.api.endpoint import Frontend


def _records(frontend: "Frontend", server: "Server", where: Callable[[], tuple[str, str]]) -> object:
    own = msgspec.convert(frontend.settings, TraceSettings, from_attributes=True)
    if not own.on:
        return None
    from .ingress import TraceReader

    reader = TraceReader(own, where()[1], frontend.settings)
    if reader.tools is not None:
        server.background.append(reader.tools.run)
    server.collectors.append(lambda: reader.families(server.metrics.prefix))
    return reader


def _command() -> object:
    from .cli import app

    return app


FEATURE = Feature(
    "request_trace",
    "a row per request in NVIDIA Dynamo's form, with times and block hashes, off by default; dynamo trace",
    uses=("tracing",),
    records=_records,
    settings={"frontend": TraceSettings},
    commands={"trace": _command},
)
