"""The two routes that make text: /v1/chat/completions and /v1/completions."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from aiohttp import HttpVersion11, web

from dynamod.http.body import read_body
from dynamod.http.context import RequestContext
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Backend, Job
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, NotFound, Overloaded, TimedOut
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.observe.logs import bound

from .chunks import ChunkFrames
from .parse import Parser, check_json
from .stream import StreamWriter
from .unary import UnaryWriter
from .validate import check_chat, check_completion

Kind = Literal["chat", "completion"]

ENDPOINTS: dict[Kind, tuple[str, str]] = {
    "chat": ("chat_completions", "chat"),
    "completion": ("completions", "completions"),
}
"""By kind: the `endpoint` label of the metrics, and the word in `ModelCard.types`."""


class Generate:
    """Reads a request, hands it to the backend, answers with what the outlet gathered or streams."""

    def __init__(self, kind: Kind, settings: FrontendSettings, backend: Backend) -> None:
        self._kind: Kind = kind
        self._settings = settings
        self._backend = backend
        self._label, self._type = ENDPOINTS[kind]
        self._ids: set[str] = set()
        reject = settings.unknown_fields == "reject"
        self._read: Callable[[bytes], tuple[ChatRequest | CompletionRequest, int]]
        if kind == "chat":
            self._read = Parser(ChatRequest, reject).parse
        else:
            self._read = Parser(CompletionRequest, reject).parse

    async def __call__(self, request: web.BaseRequest, context: RequestContext) -> web.StreamResponse:
        """Serve one request. Raises RequestError while nothing has been sent. Log lines meanwhile carry its id."""
        with bound(x_request_id=context.id):
            return await self._generate(request, context)

    async def _generate(self, request: web.BaseRequest, context: RequestContext) -> web.StreamResponse:
        context.endpoint = self._label
        body = await read_body(request, self._settings.body_limit)
        asked, unknown = self._read(body)
        context.metrics.unknown_fields += unknown
        if isinstance(asked, ChatRequest):
            check_chat(asked)
        else:
            check_completion(asked)
        name, card = self._pick(asked.model)
        if card.kind == "text":
            check_json(body)
        if asked.model != name:
            asked = msgspec.structs.replace(asked, model=name)
        job = Job(id=_unused(context.id, self._ids), kind=self._kind, request=asked, body=body)
        self._ids.add(job.id)
        try:
            return await self._serve(request, context, job)
        finally:
            context.release()
            self._ids.discard(job.id)

    async def _serve(self, request: web.BaseRequest, context: RequestContext, job: Job) -> web.StreamResponse:
        asked = job.request
        meter = context.serving(asked.model, bool(asked.stream))
        created = int(time.time())
        headers = {"x-request-id": context.id}
        limit = self._settings.total_timeout
        clock = None
        if limit:
            clock = asyncio.get_running_loop().call_later(limit, context.abort, _too_long(limit))
        try:
            if not asked.stream:
                unary = UnaryWriter(job, meter, context.begun, asked.model, created)
                await self._start(context, job, unary)
                return await unary.serve(headers)
            usage = self._settings.force_include_usage
            usage = usage or (asked.stream_options is not None and asked.stream_options.include_usage)
            chunked = request.version >= HttpVersion11
            frames = ChunkFrames(self._kind, job.id, asked.model, created, chunked=chunked, usage_null=usage)
            stream = StreamWriter(job, meter, context.begun, frames, usage)
            await self._start(context, job, stream)
            return await stream.serve(request, headers, self._settings.keep_alive)
        finally:
            if clock is not None:
                clock.cancel()

    async def _start(self, context: RequestContext, job: Job, writer: StreamWriter | UnaryWriter) -> None:
        context.responding(writer)
        limit = self._settings.total_timeout or None
        try:
            async with asyncio.timeout(limit):
                context.cancel = (await self._backend.start(job, writer)).cancel
        except TimeoutError:
            if limit is None:
                raise
            raise _too_long(limit) from None
        if not writer.open and writer.error is not None:
            context.stop()  # ended by a clock or by shutdown while the backend was beginning

    def _pick(self, name: str) -> tuple[str, ModelCard]:
        """The model asked for, with its card; without a name the only one."""
        models = self._backend.models()
        if not models:
            raise Overloaded("no model is being served; start a worker", retry_after=1)
        if not name:
            if len(models) > 1:
                known = ", ".join(sorted(models)[:8])
                raise BadRequest(f"`model` is required; served: {known}", param="model")
            name = next(iter(models))
        card = models.get(name)
        if card is None:
            known = ", ".join(sorted(models)[:8])
            raise NotFound(f"the model `{name[:200]}` does not exist; served: {known}", param="model")
        if self._type not in card.types:
            raise NotFound(f"the model `{name}` does not serve {self._type}", param="model")
        return name, card


def _too_long(limit: float) -> TimedOut:
    return TimedOut(f"the request took longer than {limit:g} s, the limit of this server")


def _unused(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with a random end when a request of that id is being served."""
    return f"{wanted}-{secrets.token_hex(4)}" if wanted in taken else wanted
