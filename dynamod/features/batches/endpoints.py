"""/v1/batches: requests of a file, asked alongside live ones. A batch is visible to the key that made it."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.body import check_json_type, read_body
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import Endpoint, Frontend
from dynamod.ingress.api.pages import listed
from dynamod.ingress.api.table import endpoints_off
from dynamod.message.errors import BadRequest, RequestError
from dynamod.preprocess.parse import Parser

from .file_endpoints import store_of
from .quotas import check_batches
from .records import ENDED, BatchObject, BatchRequest, new_batch, room_on_disk

PAGE, LONGEST_PAGE = 20, 100
BODY = 1024 * 1024
"""Most bytes of a request for a batch."""
_WINDOW = re.compile(r"[1-9][0-9]{0,2}h")
LONGEST = 168
"""Hours of the longest completion window."""


class BatchList(msgspec.Struct):
    """Batches in pages."""

    object: str
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchEnded(RequestError):
    """409: the batch has ended and cannot be cancelled."""

    status = 409
    kind = "invalid_request_error"
    code_default = "batch_ended"


class CreateBatch(Endpoint):
    """POST /v1/batches."""

    method = "POST"
    path = "/v1/batches"
    summary = "Ask the requests of a file"
    request = BatchRequest
    values: ClassVar[Mapping[str, Any]] = {
        "BatchRequest": {
            "examples": [{"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}]
        }
    }
    response = BatchObject
    errors = (400, 401, 404, 408, 413, 415, 429, 500, 507)

    def __init__(self) -> None:
        self._parser = Parser(BatchRequest)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Write the record of a batch, which a `Runner` finds. Raises RequestError."""
        store = store_of(frontend)
        check_json_type(context.request.headers)
        body = await read_body(context.request, BODY)
        asked, unknown = self._parser.parse(body, frontend.settings.unknown_fields == "reject")
        context.metrics.unknown_fields += unknown
        window = asked.completion_window
        if not _WINDOW.fullmatch(window) or int(window[:-1]) > LONGEST:
            text = f"`completion_window` is {window[:40]!r}; it must be hours like 24h, 1h to {LONGEST}h"
            raise BadRequest(text, param="completion_window")
        if asked.endpoint not in store.urls:
            text = next((text for one, text in endpoints_off() if one.path == asked.endpoint), "not served here")
            raise BadRequest(f"`endpoint` is {asked.endpoint}: {text}", param="endpoint")
        found = store.file(asked.input_file_id, context.caller.sees)
        if found.purpose != "batch":
            raise BadRequest(f"`input_file_id`: {found.id} was not uploaded for a batch", param="input_file_id")
        store.check_count()
        check_batches(frontend.settings, await asyncio.to_thread(store.unfinished), context.caller.owner)
        record = new_batch(asked, context.caller.owner)
        with room_on_disk():
            await asyncio.to_thread(store.add_batch, record)
        return json_response(record.batch)


class Batches(Endpoint):
    """GET /v1/batches."""

    path = "/v1/batches"
    summary = "The batches of this key, the newest first"
    response = BatchList
    errors = (400, 401, 404)
    query: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE, "default": PAGE},
        "after": {"type": "string", "description": "Only batches after the one with this id"},
    }

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """A page of batches. Raises NotFound, BadRequest."""
        found = await asyncio.to_thread(store_of(frontend).batches, context.caller.sees)
        return json_response(listed([one.batch for one in found], context.request.query, PAGE, LONGEST_PAGE))


class OneBatch(Endpoint):
    """GET /v1/batches/{id}."""

    path = "/v1/batches/{id}"
    prefix = "/v1/batches/"
    summary = "How far a batch is"
    response = BatchObject
    errors: ClassVar[tuple[int, ...]] = (401, 404)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """The batch as an object. Raises NotFound."""
        return json_response(store_of(frontend).batch(self.named(context), context.caller.sees).batch)


class CancelBatch(OneBatch):
    """POST /v1/batches/{id}/cancel."""

    method = "POST"
    path = "/v1/batches/{id}/cancel"
    suffix = "/cancel"
    summary = "End a batch; the answers that are there stay"
    errors = (401, 404, 409)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Ask for the end of a batch; the process that works at the batch ends it. Raises NotFound, BatchEnded."""
        store, name = store_of(frontend), self.named(context)
        batch = store.batch(name, context.caller.sees).batch
        if batch.status in ENDED:
            raise BatchEnded(f"the batch is {batch.status} already", param="id")
        store.cancel(name)
        return json_response(store.batch(name, context.caller.sees).batch)
