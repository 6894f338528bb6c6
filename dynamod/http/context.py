"""One HTTP request from arrival to log line."""

import asyncio
import logging
import re
import secrets
import uuid
from time import perf_counter

from dynamod.ingress.api.response import ResponseWriter
from dynamod.ingress.base import Job, Run
from dynamod.message.errors import Overloaded, RequestError

from .metrics import UNKNOWN, Metrics, ModelMetrics

log = logging.getLogger("dynamod.frontend")

GONE = 499  # as nginx logs it: the client closed the connection
_ID = re.compile(r"[!-~]{1,128}")
_QUIET = ("/health", "/live", "/metrics", "/openapi.json")


def request_id(header: str | None) -> str:
    """The client's x-request-id when it is short and printable, else a new one."""
    return header if header is not None and _ID.fullmatch(header) else str(uuid.uuid4())


class RequestContext:
    """What is known of one request: enough for its log line, its metrics, and to end it from outside."""

    __slots__ = (
        "answer",
        "begun",
        "endpoint",
        "error",
        "id",
        "meter",
        "method",
        "metrics",
        "model",
        "path",
        "run",
        "stream",
        "task",
    )

    def __init__(self, request_id: str, method: str, path: str, metrics: Metrics) -> None:
        self.begun = perf_counter()
        self.id = request_id
        self.method = method
        self.path = path
        self.metrics = metrics
        self.endpoint = ""  # metrics label; empty for routes that generate nothing
        self.model = UNKNOWN
        self.stream = False
        self.meter: ModelMetrics | None = None
        self.answer: ResponseWriter | None = None
        self.run: Run | None = None
        self.error: RequestError | None = None
        self.task: asyncio.Task[object] | None = None

    def serving(self, model: str, stream: bool) -> ModelMetrics:
        """The request asks for a model that is served."""
        self.model = model
        self.stream = stream
        self.meter = self.metrics.model(model)
        self.meter.inflight += 1
        self.meter.queued += 1
        return self.meter

    def answering(self, job: Job, answer: ResponseWriter) -> ResponseWriter:
        """The request is about to reach the backend."""
        self.answer = answer
        self.task = asyncio.current_task()
        return answer

    def abort(self, error: RequestError) -> None:
        """End it now with an error: before the first byte as a status, later as an error event."""
        answer = self.answer
        if answer is None:
            return
        if answer.open:
            answer.fail(error)
            if self.run is not None:
                self.run.cancel()
                self.run = None
        elif self.task is not None:
            self.task.cancel()  # complete, but its reader does not read

    def release(self) -> None:
        """The handler is through with the answer, however it ended: nobody may work on it any more."""
        if self.answer is not None and self.answer.open:
            self.answer.close()
            if self.run is not None:
                self.run.cancel()
        self.run = None

    def end(self, status: int) -> None:
        """Count and log. `status` 499: the client left."""
        answer = self.answer
        failed = self.error or (answer.error if answer is not None else None)
        if self.endpoint:
            self._count(status, failed)
        elif status == GONE:
            self.metrics.disconnected_clients += 1
        level = logging.DEBUG if self.path in _QUIET and status < 500 else logging.INFO
        if not log.isEnabledFor(level):
            return
        finish = "gone" if status == GONE else "-"
        if failed is not None and status != GONE:
            finish = failed.code or failed.kind
        elif answer is not None and status != GONE:
            finish = answer.reasons
        first = answer.first if answer is not None else None
        log.log(
            level,
            "request id=%s method=%s path=%s status=%d model=%s stream=%s prompt_tokens=%d completion_tokens=%d "
            "ttft_ms=%s duration_ms=%.1f finish=%s",
            self.id,
            self.method,
            self.path,
            status,
            self.model,
            "true" if self.stream else "false",
            answer.prompt_tokens if answer is not None else 0,
            _produced(answer),
            "-" if first is None else f"{first * 1000:.1f}",
            (perf_counter() - self.begun) * 1000,
            finish,
        )

    def _count(self, status: int, failed: RequestError | None) -> None:
        meter, answer = self.meter, self.answer
        kind = "stream" if self.stream else "unary"
        if meter is None:
            meter = self.metrics.model(UNKNOWN)
        else:
            meter.inflight -= 1
            if answer is None or answer.first is None:
                meter.queued -= 1
            meter.duration.observe(perf_counter() - self.begun)
        key = (self.endpoint, kind, "success" if status < 400 and failed is None else "error")
        meter.requests[key] = meter.requests.get(key, 0) + 1
        if isinstance(failed, Overloaded):
            meter.rejections[self.endpoint] = meter.rejections.get(self.endpoint, 0) + 1
        if status == GONE:
            self.metrics.disconnected_clients += 1
            pair = (self.endpoint, kind)
            meter.cancellations[pair] = meter.cancellations.get(pair, 0) + 1
        if answer is not None and answer.first is not None:
            meter.input_tokens.observe(answer.prompt_tokens)
            meter.output_length.observe(_produced(answer))


def unused(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with a random end when a request of that id is being served."""
    return f"{wanted}-{secrets.token_hex(4)}" if wanted in taken else wanted


def _produced(answer: ResponseWriter | None) -> int:
    if answer is None:
        return 0
    return answer.completion_tokens or sum(choice.tokens for choice in answer.choices)
