"""The worker's side of a connection: deltas gather per turn of the loop and leave as one frame, within credits."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from dynamod.actor import Total
from dynamod.message import tokens
from dynamod.message.errors import RequestError
from dynamod.message.ingress import Accepted, Delta, Failed, Frame, Items, Logprobs, Step, Text, Tokens

_encoder = msgspec.msgpack.Encoder()

WINDOW = 64
"""Frames a worker may send before the reader has confirmed any."""


class OutboxStatistics(msgspec.Struct, frozen=True):
    """Frames and deltas sent, deltas waiting for credit, credits left, streams open."""

    frames: Total
    deltas: Total
    waiting: int
    credits: int
    streams: int


class Destination(Protocol):
    """Where a `StreamReply` puts its deltas."""

    streams: "dict[int, StreamReply]"
    origin: object

    def add(self, delta: Delta) -> None:
        """Take one delta."""

    def backlog(self, stream: int) -> int:
        """Items of a stream that wait."""
        ...


class Outbox:
    """Gathers deltas for one destination process. `write` sends a payload; `blocked` says its socket is full."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._pending: list[Delta] = []
        self._scheduled = False
        self._credits = WINDOW
        self._blocked = False
        self._closed = False
        self._frames = self._deltas = 0
        self.streams: dict[int, StreamReply] = {}
        self.origin: object = self

    def reply(self, stream: int) -> "StreamReply":
        """A reply for a new stream."""
        reply = self.streams[stream] = StreamReply(self, stream)
        return reply

    def add(self, delta: Delta) -> None:
        """Append a delta; it leaves when the current turn of the loop ends."""
        self._pending.append(delta)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def backlog(self, stream: int) -> int:
        """Items of a stream that wait for credit or for the socket."""
        return sum(len(delta.items) for delta in self._pending if isinstance(delta, Items) and delta.stream == stream)

    def flush(self) -> None:
        """Send what is pending as one frame, if the reader keeps up; else it waits, merged, for the next credit."""
        self._scheduled = False
        if self._closed or not self._pending:
            return
        if self._credits <= 0 or self._blocked:
            self._pending = merge(self._pending)
            return
        deltas, self._pending = self._pending, []
        self._credits -= 1
        self._frames += 1
        self._deltas += len(deltas)
        self._write(_encoder.encode(Frame(tuple(columns(deltas)))))

    def credit(self, frames: int) -> None:
        """The reader has processed `frames` more frames."""
        self._credits = min(WINDOW, self._credits + frames)
        self.flush()

    def block(self, blocked: bool) -> None:
        """The socket's buffer is full, or free again."""
        self._blocked = blocked
        if not blocked:
            self.flush()

    def close(self) -> None:
        """The reader is gone: every stream is cancelled."""
        self._closed = True
        self._pending.clear()
        for reply in list(self.streams.values()):
            reply.cancel()

    def statistics(self) -> OutboxStatistics:
        """A snapshot of this destination."""
        return OutboxStatistics(self._frames, self._deltas, len(self._pending), self._credits, len(self.streams))


MAX_STREAM = 2**31 - 1
"""Largest stream number that fits into a `Step`."""


def columns(deltas: list[Delta]) -> list[Delta | Step]:
    """Write neighbouring single tokens as one `Step`; the order stays."""
    out: list[Delta | Step] = []
    run: list[Tokens] = []
    for delta in deltas:
        if type(delta) is Tokens and delta.finish is None and len(delta.ids) == 4 and delta.stream <= MAX_STREAM:
            run.append(delta)
            continue
        if run:
            _close_run(out, run)
            run = []
        out.append(delta)
    if run:
        _close_run(out, run)
    return out


def _close_run(out: list[Delta | Step], run: list[Tokens]) -> None:
    if len(run) < 2:
        out += run
        return
    streams = tokens.pack([delta.stream for delta in run])
    offsets = tokens.pack([delta.offset for delta in run])
    out.append(Step(streams, offsets, b"".join([delta.ids for delta in run])))


def merge(deltas: list[Delta]) -> list[Delta]:
    """Join neighbouring deltas of each stream, so that what waits for a slow reader is bounded by its responses.

    Only runs of one kind are joined; a stream's other deltas keep their place in its order.
    """
    merged: list[Delta] = []
    last: dict[int, int] = {}  # stream -> place in `merged` of its last delta
    for delta in deltas:
        place = last.get(delta.stream)
        before = merged[place] if place is not None else None
        if place is not None and isinstance(delta, Tokens) and isinstance(before, Tokens):
            merged[place] = Tokens(delta.stream, before.offset, before.ids + delta.ids, delta.finish)
        elif place is not None and isinstance(delta, Text) and isinstance(before, Text):
            merged[place] = Text(
                delta.stream,
                before.offset,
                before.text + delta.text,
                before.tokens + delta.tokens,
                delta.finish,
                delta.prompt_tokens,
            )
        elif place is not None and isinstance(delta, Items) and isinstance(before, Items):
            merged[place] = Items(delta.stream, before.offset, before.items + delta.items, delta.finish)
        else:
            last[delta.stream] = len(merged)
            merged.append(delta)
    return merged


class StreamReply:
    """`base.Reply` over an outbox."""

    __slots__ = ("_callbacks", "_endings", "_offset", "_outbox", "_stream", "cancelled", "ended")

    def __init__(self, outbox: Destination, stream: int) -> None:
        self._outbox = outbox
        self._stream = stream
        self._offset = 0
        self._callbacks: list[Callable[[], object]] = []
        self._endings: list[Callable[[bool], None]] = []
        self.cancelled = False
        self.ended = False

    @property
    def origin(self) -> object:
        """Who reads: the same object for all streams of one ingress process."""
        return self._outbox.origin

    @property
    def backlog(self) -> int:
        """Items that wait for a slow reader."""
        return self._outbox.backlog(self._stream)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the reader leaves."""
        if self.cancelled:
            callback()
        elif not self.ended:
            self._callbacks.append(callback)

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(cancelled)` once when the stream has ended."""
        if self.ended or self.cancelled:
            callback(self.cancelled)
        else:
            self._endings.append(callback)

    def cancel(self) -> None:
        """The reader left."""
        if not self.ended and not self.cancelled:
            self.cancelled = True
            self._outbox.streams.pop(self._stream, None)
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()
            self._tell_end(True)

    def accepted(self) -> None:
        """The actor has taken the request."""
        self._add(Accepted(self._stream), None)

    def tokens(self, ids: bytes, count: int, finish: str | None = None) -> None:
        """New token ids, packed int32, and how many they are."""
        self._add(Tokens(self._stream, self._offset, ids, finish), finish)
        self._offset += count

    def text(self, text: str, tokens: int = 0, finish: str | None = None, prompt_tokens: int | None = None) -> None:
        """New text of a text engine."""
        self._add(Text(self._stream, self._offset, text, tokens, finish, prompt_tokens), finish)
        self._offset += len(text)

    def items(self, items: tuple[Any, ...], finish: str | None = None) -> None:
        """Values of a user's endpoint, or chunk dicts of a text engine."""
        self._add(Items(self._stream, self._offset, items, finish), finish)
        self._offset += len(items)

    def logprobs(self, chosen: tuple[float, ...], top: tuple[tuple[tuple[int, float], ...], ...] = ()) -> None:
        """Log probabilities of the tokens that the next `tokens` call brings."""
        self._add(Logprobs(self._stream, self._offset, chosen, top), None)

    def failed(
        self, error: str, message: str, *, param: str | None = None, retry: bool = False, code: str | None = None
    ) -> None:
        """End the stream with an error."""
        self._add(Failed(self._stream, error, message, param, retry, code), "error")

    def raised(self, error: RequestError) -> None:
        """End the stream with this error."""
        self._add(Failed.of(self._stream, error), "error")

    def _add(self, delta: Delta, finish: str | None) -> None:
        if self.ended or self.cancelled:
            return
        self._outbox.add(delta)
        if finish is not None:
            self.ended = True
            self._callbacks.clear()
            self._outbox.streams.pop(self._stream, None)
            self._tell_end(False)

    def _tell_end(self, cancelled: bool) -> None:
        endings, self._endings = self._endings, []
        for callback in endings:
            callback(cancelled)
