"""Tags of requests: shown in logs, decisions and metrics, and requests that go only to workers with a label."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

from .messages import TagFields, TagSettings

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.ingress.api.endpoint import Endpoint, Frontend
    from dynamod.ingress.parts import ProcessorContext


def _processor(context: "ProcessorContext") -> object:
    from .ingress import TaggedRequests

    return TaggedRequests(context)


def _worker() -> type:
    from .worker import LabelledWorker

    return LabelledWorker


def _serve(frontend: "Frontend", server: "Server", endpoints: "Sequence[Endpoint]") -> None:
    from .ingress import families

    server.collectors.append(partial(families, frontend.backend, server.metrics.prefix))


def _note() -> Callable[[str], str]:
    return "tags: {}".format


FEATURE = Feature(
    "tags",
    "tags of requests in logs, decisions and metrics; `tag=x` goes to workers with the label x",
    serve=_serve,
    settings={"worker": TagSettings},
    nvext=TagFields,
    notes={"tags": _note},
    processor=_processor,
    worker=_worker,
)
