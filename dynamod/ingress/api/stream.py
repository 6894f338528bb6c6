"""The streamed answer: the outlet writes to the socket itself, the handler sleeps until there is more to decide."""

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from aiohttp import web

from dynamod.http.errors import error_object
from dynamod.http.metrics import ModelMetrics
from dynamod.http.sse import Frames
from dynamod.ingress.base import Job, Logprob
from dynamod.message.errors import EngineFailed, RequestError

from .logprobs import chat_form, completion_form
from .response import Choice, ResponseWriter

HIGH_WATER = 64 * 1024  # unsent bytes above which text is merged instead of written

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class StreamWriter(ResponseWriter):
    """Writes SSE frames straight to the transport.

    Nothing is sent before the first text, so an earlier failure keeps its HTTP status. While the client is slow, text
    piles up in `held`, one string per choice, and leaves as one chunk when the socket has drained: memory is bounded by
    the answer itself. Cancelling `serve` (the client left) leaves nothing behind.
    """

    def __init__(self, job: Job, meter: ModelMetrics, begun: float, frames: Frames, usage: bool) -> None:
        super().__init__(job, meter, begun)
        options = job.request.stream_options
        nvext = job.request.nvext
        self._frames = frames
        self._usage = usage
        self._usage_each = options is not None and options.continuous_usage_stats
        self._asked = frozenset((nvext.annotations if nvext is not None else None) or ())
        self._transport: asyncio.WriteTransport | None = None
        self._committed = False
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
            transport = self._transport
            if transport.get_write_buffer_size() <= HIGH_WATER:  # type: ignore[union-attr]
                transport.write(self._frames.text(choice.prefix, text))  # type: ignore[union-attr]
                return
            choice.direct = False
        choice.held.append(text)
        self._dirty[index] = choice
        self._push()

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
        self._push()

    async def serve(
        self, request: web.BaseRequest, headers: Mapping[str, str], keep_alive: float
    ) -> web.StreamResponse:
        """ResponseWriter the request. Raises the RequestError that ended it while no byte had been sent."""
        await self._more(keep_alive)
        if self.error is not None and not self._committed:
            raise self.error
        self._committed = True
        response = web.StreamResponse(headers={**_HEADERS, **headers})
        await response.prepare(request)
        self._transport = request.transport
        while True:
            self._flush()
            if not self.open:
                break
            await self._more(keep_alive)
            await request.writer.drain()
        await response.write_eof()
        return response

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
        self._push()

    def _failed(self, error: RequestError) -> None:
        if not self._committed:
            self._ready.clear()
            return
        for choice in self.choices:
            self._seal(choice)
        self._ready.append(self._frames.error(error_object(error)))
        self._push()

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

    def _push(self) -> None:
        """Send what is ready, or let the handler do it when the socket can take it."""
        if self._transport is not None and self._transport.get_write_buffer_size() <= HIGH_WATER:
            self._flush()
        else:
            self._wake()

    def _flush(self) -> None:
        for choice in self._dirty.values():
            self._seal(choice)
            choice.direct = self._transport is not None and bool(choice.prefix) and not self._usage_each
        self._dirty.clear()
        data = b"".join(self._ready)
        self._ready.clear()
        transport = self._transport
        if data and transport is not None and not transport.is_closing():
            transport.write(data)

    async def _more(self, keep_alive: float) -> None:
        """Wait for something to send or for the end; a silent interval gives a comment."""
        while self.open and not self._dirty and not (self._ready and self._committed):
            if not keep_alive:
                await self._wait()
                continue
            try:
                async with asyncio.timeout(keep_alive):
                    await self._wait()
            except TimeoutError:
                if perf_counter() - max((choice.last for choice in self.choices), default=0.0) >= keep_alive:
                    self._ready.append(self._frames.comment("keep-alive"))
                    return
