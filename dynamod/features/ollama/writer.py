"""Answers in Ollama's form: lines of JSON as they are made, or one object.

A line has `model`, `created_at`, `done` and what is new: `message` (chats), or `response` and `thinking`. The last one
has `done_reason`, counts, and durations in nanoseconds.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Literal

import msgspec
from aiohttp import HttpVersion, HttpVersion11, web

from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.http.stream import EventFrames
from dynamod.ingress.api.blocks import BlockStreamWriter, BlockWriter, Kind
from dynamod.ingress.api.details import finite
from dynamod.ingress.api.response import Choice
from dynamod.ingress.base import Logprob
from dynamod.message.errors import RequestError
from dynamod.message.hints import printable

from .errors import error_value

NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


class OllamaTokenLogprob(msgspec.Struct):
    """A token with its log probability."""

    token: str
    logprob: float | None
    bytes: list[int]


class OllamaLogprob(OllamaTokenLogprob):
    """A token of the answer, with the best tokens at its place."""

    top_logprobs: list[OllamaTokenLogprob]


class OllamaCalledFunction(msgspec.Struct):
    """The function of a call; `index`: which call of the answer it is."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct):
    """A call of a tool."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswer(msgspec.Struct, omit_defaults=True):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[OllamaCall] = []


class OllamaLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What every answer has. Durations are nanoseconds; the load is the wait for a worker."""

    model: str
    created_at: str
    done: bool
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: list[OllamaLogprob] = []


class OllamaChatResponse(OllamaLine, omit_defaults=True, kw_only=True):
    """A line of /api/chat."""

    message: OllamaAnswer


class OllamaGenerateResponse(OllamaLine, omit_defaults=True, kw_only=True):
    """A line of /api/generate."""

    response: str
    thinking: str = ""


Make = Callable[..., OllamaLine]
"""Makes a line of the fields of `OllamaLine` and of what is new: `text`, `thinking`, `calls`."""


def chat_line(text: str, thinking: str, calls: list[OllamaCall], **fields: Any) -> OllamaChatResponse:
    """A line of /api/chat."""
    return OllamaChatResponse(message=OllamaAnswer("assistant", text, thinking, calls), **fields)


def generate_line(text: str, thinking: str, _calls: list[OllamaCall], **fields: Any) -> OllamaGenerateResponse:
    """A line of /api/generate, which has no tools."""
    return OllamaGenerateResponse(response=text, thinking=thinking, **fields)


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaWriter(BlockWriter):
    """What both writers share."""

    def __init__(self, make: Make, model: str, meter: ModelMetrics, begun: float) -> None:
        super().__init__(meter, begun)
        self._make, self._model = make, model
        self._called: list[OllamaCall] = []
        self._arguments: list[str] = []

    def opened(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        """A block begins."""
        if kind == "tool_use":
            function = OllamaCalledFunction(len(self._called), name, {})
            self._called.append(OllamaCall(call_id or f"call_{secrets.token_hex(4)}", function))
            self._arguments.clear()

    def call(self) -> OllamaCall:
        """The newest call, with all its arguments."""
        made = self._called[-1]
        made.function.arguments = self.call_object(printable("".join(self._arguments)))
        return made

    def line(self, text: str = "", thinking: str = "", calls: Sequence[OllamaCall] = (), **fields: Any) -> OllamaLine:
        """A line with what is new, and the log probabilities that have come."""
        entries, self.choices[0].entries = self.choices[0].entries, []
        scored = [_scored(one) for one in entries]
        common = {"model": self._model, "created_at": now(), "logprobs": scored}
        return self._make(printable(text), printable(thinking), [*calls], **common, **fields)

    def ending(self, choice: Choice) -> dict[str, Any]:
        """The fields of the last line."""
        times = self.request_metrics()
        waited, first = times.queue_time_ms, times.time_to_first_token_ms
        return {
            "done": True,
            "done_reason": "length" if choice.reason == "length" else "stop",
            "total_duration": int((perf_counter() - self._begun) * 1e9),
            "load_duration": int(waited * 1e6),
            "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": 0 if first is None else int(max(0.0, first - waited) * 1e6),
            "eval_count": self.completion_tokens,
            "eval_duration": int((times.generation_time_ms or 0.0) * 1e6),
        }


class OllamaUnaryWriter(OllamaWriter):
    """Collects an answer."""

    def __init__(self, make: Make, model: str, meter: ModelMetrics, begun: float) -> None:
        super().__init__(make, model, meter, begun)
        self._texts: dict[str, list[str]] = {"text": [], "thinking": []}

    def more(self, text: str) -> None:
        """Keep it."""
        (self._arguments if self.kind == "tool_use" else self._texts[self.kind or "text"]).append(text)

    def ended(self) -> None:
        """Keep a call."""
        if self.kind == "tool_use":
            self.call()

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and send the answer."""
        return await self.in_one_piece(self._answer, headers)

    def _answer(self) -> OllamaLine:
        text, thinking = ("".join(self._texts[kind]) for kind in ("text", "thinking"))
        return self.line(text, thinking, self._called, **self.ending(self.choices[0]))


class LineFrames(EventFrames):
    """Makes the frames of one answer. `quiet`: makes a line without news."""

    def __init__(self, chunked: bool, quiet: Callable[[], OllamaLine]) -> None:
        super().__init__(chunked)
        self._quiet = quiet

    def comment(self, text: str) -> bytes:
        """A line without news: clients read every line as JSON."""
        return self.line(self._quiet())

    def line(self, value: Any) -> bytes:
        """A line of JSON."""
        return self.frame(_encode(value) + b"\n")


class OllamaStreamWriter(BlockStreamWriter, OllamaWriter):
    """Makes the lines of one answer."""

    def __init__(
        self,
        make: Make,
        model: str,
        meter: ModelMetrics,
        begun: float,
        settings: FrontendSettings,
        version: HttpVersion = HttpVersion11,
    ) -> None:
        quiet = lambda: make("", "", [], model=model, created_at=now(), done=False)  # noqa: E731
        self._frames = LineFrames(version >= HttpVersion11, quiet)
        super().__init__(*(make, model, meter, begun), frames=self._frames, keep_alive=settings.keep_alive)

    def more(self, text: str) -> None:
        """Text of the open block; the arguments of a call wait for its end, since they are an object."""
        if self.kind == "tool_use":
            self._arguments.append(text)
        else:
            super().more(text)

    def delta(self, text: str) -> bytes:
        """A line with text of the open block: the hot path."""
        thinking = self.kind == "thinking"
        return self._frames.line(self.line("" if thinking else text, text if thinking else "", done=False))

    def ended(self) -> None:
        """The open block is complete."""
        super().ended()
        if self.kind == "tool_use":
            self._ready.append(self._frames.line(self.line(calls=[self.call()], done=False)))

    def fail_event(self, error: RequestError) -> None:
        """The stream ends here with an error."""
        self._ready.append(self._frames.line(error_value(error)))

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send the lines as they are made."""
        return await super().respond(request, {**headers, "Content-Type": NDJSON})

    def _finished(self, choice: Choice) -> None:
        super()._finished(choice)
        if self.open:
            self._seal()
            self._ready.append(self._frames.line(self.line(**self.ending(choice))))
            self.events.push(self)


def _scored(entry: Logprob) -> OllamaLogprob:
    top = [OllamaTokenLogprob(token, finite(value), list(raw)) for token, raw, value in entry.top]
    return OllamaLogprob(entry.token, finite(entry.value), list(entry.token_bytes), top)
