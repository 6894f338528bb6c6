"""Anthropic's message batches, on the feature `batches`: a batch of requests for /v1/messages."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from dynamod.features.batches.endpoints import BatchEnded
from dynamod.features.batches.file_endpoints import store_of
from dynamod.features.batches.input import LINES
from dynamod.features.batches.keeping import keep_batch
from dynamod.features.batches.records import ENDED, BatchObject
from dynamod.http.answer import json_response
from dynamod.http.body import check_json_type, read_body
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import Bytes, Endpoint, Frontend
from dynamod.ingress.large import apart
from dynamod.message.errors import BadRequest, NotFound
from dynamod.preprocess.parse import Parser

from .errors import ANTHROPIC
from .models import page

URL: Literal["/v1/messages"] = "/v1/messages"
AT_ONCE = 256 * 1024
"""Bytes of answers that are read and sent at a time."""


class BatchedMessage(msgspec.Struct, frozen=True):
    """One request; its `params` are checked when it is asked."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=64)]
    params: dict[str, Any]


class MessageBatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/messages/batches."""

    requests: Annotated[list[BatchedMessage], Meta(min_length=1, max_length=LINES)]


class RequestCounts(msgspec.Struct):
    """Numbers of requests by what came of them."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, kw_only=True):
    """A batch as Anthropic shows it."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: RequestCounts
    created_at: str
    expires_at: str
    ended_at: str | None = None
    cancel_initiated_at: str | None = None
    archived_at: str | None = None
    results_url: str | None = None


class DeletedMessageBatch(msgspec.Struct, frozen=True):
    """The answer to DELETE."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageBatchList(msgspec.Struct):
    """Batches in pages."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Batches(Endpoint):
    error_form = ANTHROPIC
    errors: ClassVar[tuple[int, ...]] = (401, 404)
    response: ClassVar[type[msgspec.Struct] | None] = MessageBatch

    def found(self, frontend: Frontend, context: RequestContext) -> BatchObject:
        """The batch that the path names. Raises NotFound."""
        name = self.named(context)
        batch = store_of(frontend).batch(name, context.caller.sees).batch
        if batch.endpoint != URL:
            raise NotFound(f"there is no batch of messages `{name[:200]}`", param="id", code="batch_not_found")
        return batch


class CreateMessageBatch(_Batches):
    """A new batch."""

    method = "POST"
    path = "/v1/messages/batches"
    summary = "Ask many conversations alongside live ones, as Anthropic has it"
    request = MessageBatchRequest
    values: ClassVar[Mapping[str, Any]] = {
        "MessageBatchRequest": {
            "examples": [
                {
                    "requests": [
                        {
                            "custom_id": "a",
                            "params": {"max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]},
                        }
                    ]
                }
            ]
        }
    }
    errors = (400, 401, 404, 408, 413, 415, 429, 500, 507)

    def __init__(self) -> None:
        self._parser = Parser(MessageBatchRequest)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Keep the requests. Raises RequestError."""
        store_of(frontend)
        check_json_type(context.request.headers)
        with frontend.bodies.share() as share:
            body = await read_body(context.request, frontend.body_limit, share, frontend.settings.body_min_rate)
            lines = await apart(self._lines, body)
        record = await keep_batch(frontend, context.caller.owner, lines, URL, "message_batch.jsonl")
        return json_response(shown(record.batch, context))

    def _lines(self, body: bytes) -> bytes:
        asked, _ = self._parser.parse(body)
        names: set[str] = set()
        rows: list[bytes] = []
        for place, one in enumerate(asked.requests):
            if one.custom_id in names:
                where = f"requests[{place}].custom_id"
                raise BadRequest(f"`{where}` is {one.custom_id!r}, which an earlier request has", param=where)
            names.add(one.custom_id)
            row = {"custom_id": one.custom_id, "method": "POST", "url": URL, "body": one.params}
            rows.append(msgspec.json.encode(row) + b"\n")
        return b"".join(rows)


class MessageBatches(_Batches):
    """The list."""

    path = "/v1/messages/batches"
    summary = "The batches of messages of this key, the newest first"
    response = MessageBatchList
    errors = (400, 401, 404)
    query: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 20},
        "after_id": {"type": "string"},
        "before_id": {"type": "string"},
    }

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """A page of batches. Raises NotFound, BadRequest."""
        found = await asyncio.to_thread(store_of(frontend).batches, context.caller.sees)
        batches = {one.batch.id: one.batch for one in found if one.batch.endpoint == URL}
        return json_response(page([*batches], lambda name: shown(batches[name], context), context.request.query))


class OneMessageBatch(_Batches):
    """One batch."""

    path = "/v1/messages/batches/{id}"
    prefix = "/v1/messages/batches/"
    summary = "How far a batch of messages is"

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """The batch. Raises NotFound."""
        return json_response(shown(self.found(frontend, context), context))


class CancelMessageBatch(_Batches):
    """A batch that shall end."""

    method = "POST"
    path = "/v1/messages/batches/{id}/cancel"
    prefix = "/v1/messages/batches/"
    suffix = "/cancel"
    summary = "End a batch of messages; the answers that are there stay"
    errors = (401, 404, 409)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Ask for the end. Raises NotFound, BatchEnded."""
        batch = self.found(frontend, context)
        if batch.status in ENDED:
            raise BatchEnded(f"the batch is {batch.status} already", param="id")
        store_of(frontend).cancel(batch.id)
        return json_response(shown(self.found(frontend, context), context))


class DeleteMessageBatch(OneMessageBatch):
    """A batch that shall not be kept."""

    method = "DELETE"
    summary = "Delete a batch of messages that has ended, with its answers"
    response = DeletedMessageBatch
    errors = (401, 404, 409)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Delete the batch. Raises NotFound, StoreInUse while the batch works."""
        store, batch = store_of(frontend), self.found(frontend, context)
        await asyncio.to_thread(store.remove_batch, store.batch(batch.id, context.caller.sees))
        return json_response(DeletedMessageBatch(batch.id))


class JsonLines(Bytes):
    """A line of JSON for each request of a batch."""

    media_type = "application/x-jsonl"


class MessageBatchResults(_Batches):
    """The answers."""

    path = "/v1/messages/batches/{id}/results"
    prefix = "/v1/messages/batches/"
    suffix = "/results"
    summary = "The answers of a batch of messages, a line of JSON each"
    response = JsonLines

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Send them as fast as the client reads. Raises NotFound, also while the batch works."""
        store, batch = store_of(frontend), self.found(frontend, context)
        if batch.status not in ENDED:
            raise NotFound(f"the batch `{batch.id}` has not ended: it is {batch.status}", param="id")
        names = [name for name in (batch.output_file_id, batch.error_file_id) if name is not None]
        pieces = _pieces([store.data(store.file(name, context.caller.sees).id) for name in names])
        response = web.StreamResponse(headers={"Content-Type": "application/x-jsonl", **context.headers})
        await response.prepare(context.request)
        while data := await asyncio.to_thread(next, pieces, b""):
            await response.write(data)  # `client_timeout` ends a connection whose client reads nothing
        await response.write_eof()
        return response


def _pieces(paths: list[Any]) -> Iterator[bytes]:
    """The lines of the files in Anthropic's form, many at a time."""
    rows: list[bytes] = []
    size = 0
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                rows.append(msgspec.json.encode(result_of(msgspec.json.decode(line))) + b"\n")
                size += len(rows[-1])
                if size > AT_ONCE:
                    yield b"".join(rows)
                    rows, size = [], 0
    if rows:
        yield b"".join(rows)


def result_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a batch's answers as Anthropic has it."""
    response, failure = row.get("response") or {}, row.get("error")
    result: dict[str, Any]
    if response.get("status_code") == 200:
        result = {"type": "succeeded", "message": response["body"]}
    elif failure and failure.get("code") == "batch_expired":
        result = {"type": "expired"}
    else:
        said = response.get("body") or {"type": "error", "error": {"type": "api_error", **(failure or {})}}
        result = {"type": "errored", "error": said}
    return {"custom_id": row["custom_id"], "result": result}


def shown(batch: BatchObject, context: RequestContext) -> MessageBatch:
    """A batch in Anthropic's form."""
    counts, over = batch.request_counts, batch.status in ENDED
    rest = max(0, counts.total - counts.completed - counts.failed)
    found = RequestCounts(succeeded=counts.completed, errored=counts.failed)
    if not over:
        found.processing = rest
    elif batch.status == "cancelled":
        found.canceled = rest
    request = context.request
    origin = f"{request.scheme}://{request.headers.get('Host', 'localhost')}"
    ended = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    return MessageBatch(
        id=batch.id,
        processing_status="ended" if over else "canceling" if batch.status == "cancelling" else "in_progress",
        request_counts=found,
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=_time(ended) if over and ended is not None else None,
        cancel_initiated_at=_time(batch.cancelling_at) if batch.cancelling_at is not None else None,
        results_url=f"{origin}{MessageBatches.path}/{batch.id}/results" if over else None,
    )


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
