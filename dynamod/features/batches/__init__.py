"""OpenAI's Files and Batch APIs: files of requests, asked alongside live ones."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import BatchSettings

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
    own = msgspec.convert(settings, BatchSettings, from_attributes=True)
    if not own.batches_dir:
        return None
    from .store import Store  # a frontend without batches starts sooner

    return Store(own.batches_dir, own.limit)


def _serve(frontend: "Frontend", server: "Server", endpoints: "Sequence[Endpoint]") -> None:
    store: Store | None = frontend.parts["batches"]
    if store is None:
        return
    from dynamod.ingress.api.endpoint import BodyEndpoint

    from .ask import Asker
    from .records import URLS
    from .runner import Runner

    asked = {one.path: one for one in endpoints if one.path in URLS and isinstance(one, BodyEndpoint)}
    store.urls = tuple(asked)
    asker = Asker(frontend, server.keys, server.metrics, asked)
    own = msgspec.convert(frontend.settings, BatchSettings, from_attributes=True)
    longest = min(own.line_limit, frontend.body_limit)
    runner = Runner(store, asker, own.batches_inflight, longest)
    server.background.append(runner.run)
    server.collectors.append(partial(runner.families, server.metrics.prefix))


FEATURE = Feature(
    "batches",
    "OpenAI's Files and Batch APIs: /v1/files, /v1/batches",
    endpoints=_endpoints,
    part=_part,
    serve=_serve,
    settings={"frontend": BatchSettings},
)
