"""The streamed answer: each delta becomes a frame and leaves in the same call, unless the client is slow."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dynamod.http.errors import error_object
from dynamod.http.metrics import ModelMetrics
from dynamod.http.stream import HIGH_WATER, EventStream
from dynamod.ingress.base import Job, Logprob
from dynamod.message.errors import EngineFailed, RequestError

from .chunks import ChunkFrames
from .logprobs import chat_form, completion_form
from .response import Choice, ResponseWriter


class StreamWriter(ResponseWriter):
    """Makes the events of one answer.

    While the client is slow, text piles up in `held`, one string per choice, and leaves as one chunk when the socket
    has drained.
    """

    def __init__(self, job: Job, meter: ModelMetrics, begun: float, frames: ChunkFrames, usage: bool) -> None:
        super().__init__(job, meter, begun)
        options = job.request.stream_options
        nvext = job.request.nvext
        self.events = EventStream(self, frames)
        self._frames = frames
        self._usage = usage
        self._usage_each = options is not None and options.continuous_usage_stats
        self._asked = frozenset((nvext.annotations if nvext is not None else None) or ())
        self._ready: list[bytes] = []
        self._dirty: dict[int, Choice] = {}  # choices with text that may go

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """See ResponseSink. Annotations wait for the first text."""
        if self.open and not self.choices:
            super().started(choices, prompt_tokens, annotations)
            if "request_id" in self._asked:
                annotations = {"request_id": self.job.id, **annotations}
            try:
                self._ready += [self._frames.annotation(name, value) for name, value in annotations.items()]
            except (TypeError, ValueError):
                self.fail(EngineFailed("an annotation is no JSON"))

    def text(self, index: int, text: str, tokens: int) -> None:
        """See ResponseSink."""
        if not self.open:
            return
        choice = self.choices[index]
        self.tick(choice, tokens)
        if not text:
            return
        if choice.direct:
            transport = self.events.transport
            if transport.get_write_buffer_size() <= HIGH_WATER:  # type: ignore[union-attr]
                transport.write(self._frames.text(choice.prefix, text))  # type: ignore[union-attr]
                return
            choice.direct = False
        choice.held.append(text)
        self._dirty[index] = choice
        self.events.push()

    def logprobs(self, index: int, entries: tuple[Logprob, ...]) -> None:
        """See ResponseSink. They travel with the next text."""
        if self.open:
            choice = self.choices[index]
            choice.entries += entries
            choice.direct = False

    def chunk(self, index: int, chunk: Mapping[str, Any]) -> None:
        """See ResponseSink."""
        if not self.open:
            return
        choice = self.choices[index]
        self.tick(choice, 0)
        try:
            for part in chunk.get("choices") or ():
                self._part(choice, part)
        except (TypeError, ValueError, AttributeError):
            self.fail(EngineFailed("the engine sent a chunk that is no OpenAI chunk"))
            return
        self._dirty[index] = choice
        self.events.push()

    async def serve(
        self, request: web.BaseRequest, headers: Mapping[str, str], keep_alive: float
    ) -> web.StreamResponse:
        """Respond to the request. Raises the RequestError that ended it while no byte had been sent."""
        return await self.events.serve(request, headers, keep_alive)

    def pending(self, committed: bool) -> bool:
        """Whether there is something to send: annotations alone do not commit the response to a status."""
        return bool(self._dirty) or (committed and bool(self._ready))

    def take(self) -> bytes:
        """Everything that is ready, with the text of each choice as one frame."""
        transport = self.events.transport
        for choice in self._dirty.values():
            self._seal(choice)
            choice.direct = transport is not None and bool(choice.prefix) and not self._usage_each
        self._dirty.clear()
        data = b"".join(self._ready)
        self._ready.clear()
        return data

    def last(self) -> float:
        """When the newest tokens came."""
        return max((choice.last for choice in self.choices), default=0.0)

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        delta = dict(part.get("delta") or {})
        if self._frames.chat:
            content = part.get("text")
            if isinstance(content, str):
                delta.setdefault("content", content)
            if not any(value is not None for name, value in delta.items() if name != "role"):
                return
            body: dict[str, Any] = {"delta": delta}
        else:
            text = part.get("text", delta.get("content"))
            if not text:
                return
            body = {"text": text}
        self._seal(choice)
        choice.direct = False
        if self._frames.chat and not choice.prefix:
            delta = {"role": "assistant", **delta}
            body["delta"] = delta
        choice.prefix = choice.prefix or self._frames.prefix(choice.index, first=False)
        self._ready.append(self._chunk(choice, body, part.get("logprobs")))

    def _finished(self, choice: Choice) -> None:
        if choice.held:
            self._seal(choice)
        empty: dict[str, Any] = {"text": ""}
        if self._frames.chat:
            empty = {"delta": {} if choice.prefix else {"role": "assistant", "content": ""}}
        self._ready.append(self._chunk(choice, empty, self._take_logprobs(choice), choice.reason))
        if not self._unfinished:
            if self._usage:
                self._ready.append(self._frames.chunk(None, self.usage()))
            self._ready.append(self._frames.done())
        self.events.push()

    def _failed(self, error: RequestError) -> None:
        if not self.events.committed:
            self._ready.clear()
            return
        for choice in self.choices:
            self._seal(choice)
        self._ready.append(self._frames.error(error_object(error)))
        self.events.push()

    def _seal(self, choice: Choice) -> None:
        """Turn the text a choice holds into one frame."""
        if not choice.held:
            return
        text = choice.held[0] if len(choice.held) == 1 else "".join(choice.held)
        choice.held.clear()
        first = not choice.prefix
        choice.prefix = self._frames.prefix(choice.index, first=False) if first else choice.prefix
        if not (choice.entries or self._usage_each):
            prefix = self._frames.prefix(choice.index, first=True) if first else choice.prefix
            self._ready.append(self._frames.text(prefix, text))
            return
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        body = {"delta": delta | {"content": text}} if self._frames.chat else {"text": text}
        self._ready.append(self._chunk(choice, body, self._take_logprobs(choice)))

    def _chunk(self, choice: Choice, body: dict[str, Any], logprobs: Any, reason: str | None = None) -> bytes:
        usage = None
        if self._usage_each:
            tokens = sum(other.tokens for other in self.choices)
            prompt = self.prompt_tokens
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        whole = {"index": choice.index, **body, "logprobs": logprobs, "finish_reason": reason}
        return self._frames.chunk(whole, usage)

    def _take_logprobs(self, choice: Choice) -> dict[str, Any] | None:
        entries = choice.entries
        if not entries:
            return None
        choice.entries = []
        if self._frames.chat:
            return chat_form(entries)
        form = completion_form(entries, choice.offset)
        choice.offset += sum(len(entry.token) for entry in entries)
        return form
