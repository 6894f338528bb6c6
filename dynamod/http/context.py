"""One HTTP request from arrival to log line."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Collection
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from aiohttp import web

from dynamod.message.errors import Overloaded, RequestError
from dynamod.observe.frequent import FrequentLine
from dynamod.observe.timeline import Timeline

from .cors import origin_headers
from .metrics import UNKNOWN, Metrics, ModelMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamod.message.discovery import Instance

    from .keys import Client

log = logging.getLogger("dynamod.frontend")

GONE = 499  # as nginx logs it: the client closed the connection
_line = FrequentLine(
    log,
    "request id=%s method=%s path=%s status=%d model=%s stream=%s prompt_tokens=%d completion_tokens=%d "
    "ttft_ms=%s duration_ms=%.1f finish=%s%s",
)
_ID = re.compile(r"[!-~]{1,128}")
_random = bytearray()
os.register_at_fork(after_in_child=_random.clear)  # else two processes would give out the same ids
_ERROR_TYPES = {404: "not_found", 429: "overload", 503: "overload", 529: "overload", 504: "response_timeout"}
STATUS_ROUTES = (
    *("/", "/health", "/health/progress", "/live", "/metrics", "/openapi.json", "/docs", "/ping", "/version"),
    "/favicon.ico",
)
"""Routes that programs ask all the time: their requests are no news."""


def common_headers(identity: str) -> dict[str, str]:
    """What every answer carries."""
    return {"x-request-id": identity, "Server": "dynamod"}


def request_id(header: str | None) -> str:
    """The client's x-request-id when it is short and printable, else a new one."""
    return header if header is not None and _ID.fullmatch(header) else _new_id()


def _new_id() -> str:
    """A random UUID as `uuid.uuid4` makes it; the randomness of many is had with one call of the system."""
    if len(_random) < 16:
        _random[:] = os.urandom(16 * 256)
    text = _random[-16:].hex()
    del _random[-16:]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[int(text[16], 16) & 3]}{text[17:20]}-{text[20:]}"


class Place(NamedTuple):
    """A worker that took a choice, so many seconds after the request's arrival. `prefill`: for the prompt alone."""

    choice: int
    seconds: float
    worker: "Instance"
    prefill: bool


class AnsweredChoice(Protocol):
    """One choice of an answer."""

    index: int
    reason: str | None
    tokens: int


class Response(Protocol):
    """A response that is being made: what its request must know to end it, to count it and to log it."""

    open: bool
    error: RequestError | None
    first: float | None  # seconds from the request's arrival to the first token
    prompt_tokens: int

    @property
    def choices(self) -> "Sequence[AnsweredChoice]":
        """Its choices so far."""

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompts that were in caches; None: unknown."""

    @property
    def output_tokens(self) -> int:
        """Tokens made so far."""

    @property
    def places(self) -> "Sequence[Place]":
        """The workers that took it, in the order of time; none where no reader wants to know."""

    @property
    def reasons(self) -> str:
        """Why it ended, for the log."""

    def fail(self, error: RequestError) -> None:
        """End it with an error."""

    def close(self) -> None:
        """Take nothing more."""


class Caller(msgspec.Struct, eq=False):
    """The key that a request came with.

    `owner`: name of the key; empty: no key is needed. `client`: the key's limits, if there are any. `counts`: the
    request counts at these limits.
    """

    owner: str = ""
    client: "Client | None" = None
    counts: bool = False

    def may_ask(self, model: str) -> bool:
        """Whether the key allows a model."""
        return self.client is None or self.client.may_ask(model)

    @property
    def name(self) -> str:
        """The name of the key as records have it; empty: no key was needed, or the key was wrong."""
        return self.owner if self.client is None else self.client.key.name

    @property
    def sees(self) -> str | None:
        """Owner of the files, batches and responses that the key sees and changes; None: an admin, all owners."""
        return None if self.client is not None and self.client.key.admin else self.owner

    @property
    def priority(self) -> int | None:
        """The priority of the key; None: as the request says."""
        return None if self.client is None else self.client.key.priority


class Arrivals(web.RequestHandler):
    """A connection that knows when the first byte of its request has come. `arrived`: 0.0 between requests."""

    __slots__ = ("arrived",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.arrived = 0.0

    def data_received(self, data: bytes) -> None:
        """The client has sent something (called by the transport)."""
        if not self.arrived:
            self.arrived = perf_counter()
        super().data_received(data)


class RequestContext:
    """What is known of one request: enough for its log line, its metrics, and to end it from outside."""

    __slots__ = (
        *("cancel", "endpoint", "error", "headers", "id", "meter", "metrics", "notes"),
        *("caller", "model", "request", "response", "stream", "task", "timeline"),
    )

    def __init__(self, request: web.BaseRequest, metrics: Metrics, origins: Collection[str] = ()) -> None:
        begun = perf_counter()
        self.timeline = Timeline(begun, getattr(getattr(request, "protocol", None), "arrived", 0.0) or begun)
        self.request = request
        self.id = request_id(request.headers.get("x-request-id"))
        self.headers = common_headers(self.id)  # of the answer, whatever it is
        if origins:
            self.headers |= origin_headers(origins, request.headers.get("Origin"))
        self.metrics = metrics
        self.endpoint = ""  # metrics label; empty for routes that generate nothing
        self.model = UNKNOWN
        self.stream = False
        self.meter: ModelMetrics | None = None
        self.response: Response | None = None
        self.cancel: Callable[[], None] | None = None  # ends the work for the response, once there is some
        self.error: RequestError | None = None
        self.task: asyncio.Task[object] | None = None
        self.caller = Caller()
        self.notes: dict[str, str] = {}  # what features say of it, for the log

    @property
    def begun(self) -> float:
        """When its header had come, on the clock of `perf_counter`."""
        return self.timeline.begun

    @property
    def asked_model(self) -> str:
        """The model, once the request is known to ask for one that is served; else empty."""
        return self.model if self.meter is not None else ""

    def serving(self, model: str, stream: bool) -> ModelMetrics:
        """The request asks for a model that is served."""
        self.model = model
        self.stream = stream
        self.meter = self.metrics.model(model)
        self.meter.inflight += 1
        self.meter.started[self.endpoint, self._kind] += 1
        self.meter.queued += 1
        return self.meter

    def responding(self, response: Response) -> None:
        """Work for the request is about to begin in the task that calls this; `response` takes its results."""
        self.response = response
        self.task = asyncio.current_task()

    def abort(self, error: RequestError) -> None:
        """End it now with an error: before the first byte as a status, later as an error event."""
        response = self.response
        if response is None:
            return
        if response.open:
            response.fail(error)
            self.stop()
        elif self.task is not None:
            self.task.cancel()  # complete, but its reader does not read

    def stop(self) -> None:
        """Cancel the work, if it has begun and was not cancelled yet."""
        if self.cancel is not None:
            self.cancel()
            self.cancel = None

    def release(self) -> None:
        """The handler is through with the response, however it ended: the response must not be changed any more."""
        if self.response is not None and self.response.open:
            self.response.close()
            self.stop()
        self.cancel = None

    def end(self, status: int) -> None:
        """Count and log. `status` 499: the client left."""
        response, gone = self.response, status == GONE
        self.timeline.ended = perf_counter()
        failed = self.error or (response.error if response is not None else None)
        self.metrics.disconnected_clients += gone
        if self.caller.counts and self.caller.client is not None:
            prompt, output = (response.prompt_tokens, response.output_tokens) if response is not None else (0, 0)
            self.caller.client.give(status, prompt, output, time.monotonic())
        if self.endpoint:
            self._count(status, failed)
        if self.metrics.records is not None:
            self.metrics.records.take(self, status, failed)
        path = self.request.rel_url.raw_path
        level = logging.DEBUG if path in STATUS_ROUTES and status < 500 else logging.INFO
        if not log.isEnabledFor(level):
            return
        finish = response.reasons if response is not None else "-"
        if failed is not None:
            finish = failed.code or failed.kind
        first = response.first if response is not None else None
        _line.log(
            level,
            self.id,
            self.request.method,
            path,
            status,
            self.model,
            "true" if self.stream else "false",
            response.prompt_tokens if response is not None else 0,
            response.output_tokens if response is not None else 0,
            "-" if first is None else f"{first * 1000:.1f}",
            (perf_counter() - self.timeline.begun) * 1000,
            "gone" if gone else finish,
            "".join([f" {key}={value}" for key, value in self.notes.items()]),
        )

    def _count(self, status: int, failed: RequestError | None) -> None:
        meter, response = self.meter, self.response
        kind = self._kind
        if meter is None:
            meter = self.metrics.model(UNKNOWN)
        else:
            meter.inflight -= 1
            if response is None or response.first is None:
                meter.queued -= 1
            meter.duration.observe(perf_counter() - self.timeline.begun)
        wrong = error_type(status, failed)
        meter.requests[self.endpoint, kind, "error" if wrong else "success", wrong] += 1
        if isinstance(failed, Overloaded):
            meter.rejections[self.endpoint,] += 1
        if status == GONE:
            meter.cancellations[self.endpoint, kind] += 1
        if response is not None and response.first is not None:
            if response.prompt_tokens:  # else only the engine knew, and has not said
                meter.input_tokens.observe(response.prompt_tokens)
            meter.output_length.observe(response.output_tokens)
            if (cached := response.cached_tokens) is not None:
                meter.cached.observe(cached)

    @property
    def _kind(self) -> str:
        return "stream" if self.stream else "unary"


def error_type(status: int, failed: RequestError | None) -> str:
    """Why a request has failed, by NVIDIA Dynamo's words; empty: it has not. `failed`: its error, also in a stream."""
    if status == GONE:
        return "cancelled"
    if failed is not None:
        status = failed.status
    return "" if status < 400 else _ERROR_TYPES.get(status, "validation" if status < 500 else "internal")
