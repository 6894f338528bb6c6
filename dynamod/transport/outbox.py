"""The worker's side of a connection: deltas gather per turn of the loop and leave as one frame, within credits."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.message import newer, tokens
from dynamod.message.ingress import Delta, Frame, Items, Step, Text, Tokens
from dynamod.message.worker import Cancel, Confirm, Credit, Open, Prefill, Request, ToWorker

from .base import Receive, Reply
from .signing import NotTrusted, RequestSigning, is_signed

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_KINDS, _REQUESTS = newer.kinds(ToWorker), newer.kinds(Request)
_MESSAGE_SIZES, _REQUEST_SIZES = newer.sizes(ToWorker), newer.sizes(Request)
_SIGNED_SIZES = {kind: size + 1 for kind, size in _MESSAGE_SIZES.items()}

LARGE = 8 << 20
"""Bytes above which a frame is divided, where it has several deltas: a frame has a limit."""
WINDOW = 64
"""Frames a worker may send before the reader has confirmed any."""


class OutboxStatistics(msgspec.Struct, frozen=True):
    """Frames and deltas sent, deltas waiting for credit, credits left, streams open."""

    frames: Annotated[Total, Meta(description="Frames that were sent.")]
    deltas: Annotated[Total, Meta(description="Deltas that were sent.")]
    waiting: Annotated[int, Meta(description="Deltas that wait for credit.")]
    credits: Annotated[int, Meta(description="Credits that are left.")]
    streams: Annotated[int, Meta(description="Open streams.")]


class Outbox:
    """Gathers deltas for one destination process. `write` sends a payload; `blocked` says its socket is full.

    `signing`: of a link to another node.
    """

    def __init__(self, write: Callable[[bytes], None], signing: RequestSigning | None = None) -> None:
        self._write, self._signing = write, signing
        self._loop = asyncio.get_running_loop()
        self._pending: list[Delta] = []
        self._scheduled = False
        self._credits = WINDOW
        self._blocked = False
        self._closed = False
        self._frames = self._deltas = 0
        self.streams: dict[int, Reply] = {}
        self._newest = 0  # number of the stream that the reader has begun last: the reader counts upwards
        self.origin: object = self

    def take(self, payload: bytes | memoryview, receive: Receive) -> None:
        """Take a message of the reader; `receive` gets a new stream. Raises MsgspecError for what is no message."""
        try:
            message = _to_worker.decode(payload)
        except msgspec.ValidationError:
            if not self._refused(newer.untyped(payload)):
                raise
            return
        parts = newer.parts(payload)
        newer.count_parts(parts, _SIGNED_SIZES if is_signed(parts) else _MESSAGE_SIZES, "a message to a worker")
        match message:
            case Open(stream, endpoint, request):
                self._open(stream, endpoint, request, parts, receive)
            case Cancel(stream):
                reply = self.streams.get(stream)
                if reply is not None:
                    reply.cancel()
            case Confirm(stream):
                reply = self.streams.get(stream)
                if reply is not None:
                    reply.confirm()
            case Credit(frames):
                self.credit(frames)

    def _open(
        self, stream: int, endpoint: str, request: Request, parts: Sequence[msgspec.Raw], receive: Receive
    ) -> None:
        if stream <= self._newest:  # the request comes twice: two answers in one stream would be mixed
            return
        self._newest = stream
        reply = self.reply(stream)
        if self._signing is not None:
            try:
                reply.signer = self._signing.check(parts)
            except NotTrusted as error:
                reply.failed("EngineFailed", f"the worker does not take the request: {error}", retry=True)
                return
        parts = newer.count_fields(parts[3], _REQUEST_SIZES, "a request")
        if isinstance(request, Prefill):
            newer.count_fields(parts[1], _REQUEST_SIZES, "a request")
        receive(endpoint, request, reply)

    def _refused(self, message: list[Any]) -> bool:
        """Answer a message of a newer release with an error, if it begins a stream; False: it is no such message."""
        match message:
            case ["open", int(stream), str(endpoint), [str(kind), *_], *_]:
                known = kind in _REQUESTS
                newer.skip(f"a request with newer values for {endpoint}" if known else "a request", kind)
                why = f"the worker's release cannot read this request of kind {kind!r:.80}"
                self.reply(stream).failed("EngineFailed", why, retry=True)
            case [str(kind), *rest] if kind not in _KINDS:
                newer.skip("a message to a worker", kind)
                if rest and type(rest[0]) is int and rest[0] not in self.streams:
                    self.reply(rest[0]).failed("EngineFailed", "the worker's release cannot read this", retry=True)
            case _:
                return False
        return True

    def reply(self, stream: int) -> Reply:
        """A reply for a new stream."""
        reply = self.streams[stream] = Reply(self, stream)
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
        data = _encoder.encode(Frame(tuple(columns(deltas))))
        while len(data) > LARGE and len(deltas) > 1:  # answers of many vectors: the rest is another frame
            half = len(deltas) // 2
            deltas, self._pending = deltas[:half], deltas[half:] + self._pending
            data = _encoder.encode(Frame(tuple(columns(deltas))))
        self._credits -= 1
        self._frames += 1
        self._deltas += len(deltas)
        self._write(data)
        if self._pending and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

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
            ids, cached = before.ids + delta.ids, before.cached_tokens
            merged[place] = Tokens(delta.stream, before.offset, ids, delta.finish, cached)
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
