"""The streamed answer: each delta becomes a frame and leaves in the same call, unless the client is slow.

Of the frames (`ChunkFrames`) everything but the text is prepared once per stream.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import HttpVersion, HttpVersion11, web

from dynamod.http.errors import error_object
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.http.stream import EventFrames, EventStream
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.hints import printable
from dynamod.message.openai import Common

from .details import RequestMetrics, characters
from .response import Choice, ResponseWriter, Usage, named

if TYPE_CHECKING:
    from .generate import Generation

_encode = msgspec.json.Encoder().encode
_SIZES = tuple(b"%x\r\n" % size for size in range(1024))  # most frames: a lookup instead of formatting


class ChunkFrames(EventFrames):
    """Makes the frames of one stream. `usage_null`: chunks say `"usage": null` because the last one says it."""

    def __init__(
        self,
        form: "Generation[Any]",
        request_id: str,
        model: str,
        created: int,
        *,
        chunked: bool,
        usage_null: bool = False,
    ) -> None:
        super().__init__(chunked)
        head = {
            "id": form.id_prefix + request_id,
            "object": form.chunk_object,
            "created": created,
            "model": model,
            "system_fingerprint": None,
        }
        self._form = form
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._usage_null = b',"usage":null' if usage_null else b""
        _, after = self._around_text(0, first=False)
        tail = after + b',"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"
        self._tail_size = len(tail)
        self._tail = tail + b"\r\n" if chunked else tail

    def prefix(self, index: int, first: bool) -> bytes:
        """What stands before the text of a choice. `first`: nothing of the choice was sent before."""
        return self._head + self._around_text(index, first)[0]

    def _around_text(self, index: int, first: bool) -> tuple[bytes, bytes]:
        """The choice of a chunk before its text, and after it without the bracket that ends the choice."""
        before, _, after = _encode({"index": index, **self._form.delta("", first)}).rpartition(b'""')
        return before, after[:-1]

    def text(self, prefix: bytes, text: str) -> bytes:
        """The frame of a piece of text: the hot path."""
        try:
            content = _encode(text)
        except UnicodeEncodeError:
            content = _encode(printable(text))
        if self._chunked:
            size = len(prefix) + len(content) + self._tail_size
            line = _SIZES[size] if size < 1024 else b"%x\r\n" % size
            return b"".join((line, prefix, content, self._tail))
        return b"".join((prefix, content, self._tail))

    def chunk(
        self,
        choice: Mapping[str, Any] | None,
        usage: Usage | None = None,
        nvext: Mapping[str, Any] | None = None,
        metrics: RequestMetrics | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> bytes:
        """Any other chunk. Raises TypeError for what is not JSON. No choice: the usage chunk."""
        inner = b"" if choice is None else _encode(choice)
        tail = self._usage_null if usage is None else b',"usage":' + _encode(usage)
        tail += b"" if nvext is None else b',"nvext":' + _encode(nvext)
        tail += b"" if metrics is None else b',"metrics":' + _encode(metrics)
        tail += b"" if prompt_ids is None else b',"prompt_token_ids":' + _encode(prompt_ids)
        return self.frame(b"%b%b]%b}\n\n" % (self._head, inner, tail))

    def annotations(self, values: Mapping[str, Any]) -> bytes:
        """A chunk without choices. Raises TypeError for what is not JSON.

        NVIDIA Dynamo sends each as an event without data, on which OpenAI's SDKs end with an error.
        """
        return self.frame(b'%b]%b,"nvext":%b}\n\n' % (self._head, self._usage_null, _encode(values)))

    def error(self, error: Mapping[str, Any]) -> bytes:
        """The stream ends here with OpenAI's error object."""
        return self.event("error", _encode(error))

    def done(self) -> bytes:
        """The stream ends here, complete."""
        return self.data(b"[DONE]")


class StreamWriter(ResponseWriter):
    """Makes the events of one answer.

    While the client is slow, text piles up in `held`, one string per choice, and leaves as one chunk when the socket
    has drained.
    """

    def __init__(
        self,
        form: "Generation[Any]",
        request: Common,
        request_id: str,
        begun: float,
        meter: ModelMetrics,
        settings: FrontendSettings,
        version: HttpVersion = HttpVersion11,
    ) -> None:
        super().__init__(meter, begun, request.n or 1, form.echo(request))
        self._form, self._reasoning_field = form, settings.reasoning_field_name
        options = request.stream_options
        self._usage = settings.force_include_usage or (options is not None and options.include_usage)
        self._usage_each = self._usage and options is not None and options.continuous_usage_stats
        self._keep_alive, self._extra_fields = settings.keep_alive, request.extra_fields
        self._metrics = settings.per_request_metrics
        self._annotations = {"request_id": request_id} if request.wants("request_id") else {}
        chunked = version >= HttpVersion11
        self._frames = ChunkFrames(
            form, request_id, request.model, int(time.time()), chunked=chunked, usage_null=self._usage
        )
        self.events = EventStream(self._frames)
        self._given: dict[int, int] = {}  # ids sent, by choice, where the client wants them
        self._ready: list[bytes] = []
        self._commented = False
        self._dirty: dict[int, Choice] = {}  # choices with text that may go

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """Annotations wait for the first text."""
        if self.open and not self.choices:
            super().started(choices, prompt_tokens, annotations)
            try:
                if found := self._annotations | dict(annotations):
                    self._ready.append(self._frames.annotations(found))
            except (TypeError, ValueError):
                self.fail(EngineFailed("an annotation is no JSON"))

    def text(self, index: int, text: str, tokens: int) -> None:
        """The hot path: one frame, one write."""
        if not self.open:
            return
        choice = self.choices[index]
        self.tick(choice, tokens)
        if not text:
            return
        if choice.direct:
            outlet = self.events.outlet
            if outlet.free or outlet.ready():  # type: ignore[union-attr]
                outlet.put(self._frames.text(choice.prefix, text))  # type: ignore[union-attr]
                return
            choice.direct = False
        choice.held.append(text)
        self._dirty[index] = choice
        self.events.push(self)

    def comment(self, text: str) -> None:
        """A line that clients ignore; it commits the response to its status."""
        if self.open:
            self._commented = True
            self._ready.append(self._frames.comment(text))
            self.events.push(self)

    def chunk(self, index: int, chunk: Any) -> None:
        """A chunk of a text engine, with ids and index of this answer."""
        super().chunk(index, chunk)
        if self.open and chunk.get("choices"):
            self._dirty[index] = self.choices[index]
            self.events.push(self)

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send the events as they are made."""
        return await self.events.serve(self, request, headers, self._keep_alive)

    def pending(self, committed: bool) -> bool:
        """Whether there is something to send: annotations alone do not commit the response to a status."""
        return bool(self._dirty) or ((committed or self._commented) and bool(self._ready))

    def take(self) -> bytes:
        """Everything that is ready, with the text of each choice as one frame."""
        streaming = self.events.outlet is not None and not (self._usage_each or self.answer_ids)
        for choice in self._dirty.values():
            self._seal(choice)
            choice.direct = streaming and bool(choice.prefix)
        self._dirty.clear()
        data = b"".join(self._ready)
        self._ready.clear()
        return data

    def last(self) -> float:
        """When the newest tokens came."""
        return max((choice.last for choice in self.choices), default=0.0)

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        if delta := part.get("delta"):
            part = {**part, "delta": named(delta, self._reasoning_field)}
        members = self._form.part(part, first=not choice.prefix and not choice.held)
        if members is None:
            return
        self._seal(choice)
        choice.direct = False
        choice.prefix = choice.prefix or self._frames.prefix(choice.index, first=False)
        self._ready.append(self._chunk(choice, members, part.get("logprobs")))

    def _finished(self, choice: Choice) -> None:
        self._seal(choice)
        members = self._form.ending(first=not choice.prefix)
        nvext = (
            self.details.extra(self._extra_fields, self.first) if self._extra_fields and not self._unfinished else None
        )
        self._ready.append(self._chunk(choice, members, self._take_logprobs(choice), choice.reason, nvext))
        if not self._unfinished:
            if self._usage:
                metrics = self.request_metrics() if self._metrics else None
                self._ready.append(self._frames.chunk(None, self.usage(self.completion_tokens), metrics=metrics))
            self._ready.append(self._frames.done())  # which goes out with the end of the body, after `close`
        else:
            self.events.push(self)

    def _failed(self, error: RequestError) -> None:
        if not self.events.committed:
            self._ready.clear()
            return
        for choice in self.choices:
            self._seal(choice)
        self._ready.append(self._frames.error(error_object(error)))
        self.events.push(self)

    def _seal(self, choice: Choice) -> None:
        """Turn the text a choice holds into one frame."""
        if not choice.held:
            return
        text = choice.held[0] if len(choice.held) == 1 else "".join(choice.held)
        choice.held.clear()
        first = not choice.prefix
        choice.prefix = self._frames.prefix(choice.index, first=False) if first else choice.prefix
        if not (choice.entries or self._usage_each or self.answer_ids):
            prefix = self._frames.prefix(choice.index, first=True) if first else choice.prefix
            self._ready.append(self._frames.text(prefix, text))
            return
        self._ready.append(self._chunk(choice, self._form.delta(text, first), self._take_logprobs(choice)))

    def _chunk(
        self,
        choice: Choice,
        members: dict[str, Any],
        logprobs: Any,
        reason: str | None = None,
        nvext: Mapping[str, Any] | None = None,
    ) -> bytes:
        usage = None
        if self._usage_each:
            usage = self.usage(sum(other.tokens for other in self.choices))
        whole = {"index": choice.index, **members, "logprobs": logprobs, "finish_reason": reason}
        if not self.answer_ids:
            return self._frames.chunk(whole, usage, nvext)
        return self._frames.chunk(whole, usage, nvext, prompt_ids=self._add_ids(choice, whole))

    def _add_ids(self, choice: Choice, whole: dict[str, Any]) -> Sequence[int] | None:
        """Those of the answer that have come since the last chunk, in the choice; the prompt's, if not there."""
        index = choice.index
        given, ids = self._given.get(index), self.answer_ids[index]
        whole["token_ids"] = ids[given or 0 :]
        self._given[index] = len(ids)
        prompt = self.prompt_ids[index // self._samples]
        if self._form.prompt_ids_in_choice:
            whole["prompt_token_ids"] = prompt if given is None else None
            return None
        return prompt if len(self._given) == 1 and given is None else None

    def _take_logprobs(self, choice: Choice) -> dict[str, Any] | None:
        entries = choice.entries
        if not entries:
            return None
        choice.entries = []
        offset = choice.offset
        choice.offset += sum(map(characters, entries))
        return self._form.logprobs(entries, offset)
