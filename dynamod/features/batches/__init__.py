"""OpenAI's Files and Batch APIs: files of requests, asked beside live ones."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.http.settings import FrontendSettings
    from dynamod.ingress.api.endpoint import Endpoint, Frontend

    from .store import Store


def _endpoints() -> Sequence[object]:
    from .endpoints import Batches, CancelBatch, CreateBatch, OneBatch
    from .file_endpoints import DeleteFile, FileContent, Files, OneFile, Upload

    return (
        *(Upload(), Files(), OneFile(), DeleteFile(), FileContent()),
        *(CreateBatch(), Batches(), OneBatch(), CancelBatch()),
    )


def _part(settings: "FrontendSettings") -> "Store | None":
    if not settings.batches_dir:
        return None
    from .store import Store  # a frontend without batches starts sooner

    return Store(settings.batches_dir, settings.batches_limit)


def _serve(frontend: "Frontend", server: "Server", endpoints: "Sequence[Endpoint]") -> None:
    store: Store | None = frontend.parts["batches"]
    if store is None:
        return
    from dynamod.ingress.api.endpoint import BodyEndpoint

    from .ask import Asker
    from .metrics import families
    from .records import URLS
    from .runner import Runner

    asked = {one.path: one for one in endpoints if one.path in URLS and isinstance(one, BodyEndpoint)}
    asker = Asker(frontend, server.keys, server.metrics, asked)
    runner = Runner(store, asker, frontend.settings.batches_inflight, frontend.settings.batches_line_limit)
    server.background.append(runner.run)
    server.collectors.append(partial(families, store, runner.answered, server.metrics.prefix))


FEATURE = Feature(
    "batches",
    "OpenAI's Files and Batch APIs: /v1/files, /v1/batches",
    endpoints=_endpoints,
    part=_part,
    serve=_serve,
)
