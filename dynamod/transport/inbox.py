"""The ingress's side of a connection: frames are cut up and each stream's sink is called directly."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.message import newer, tokens
from dynamod.message.ingress import Accepted, Delta, Failed, Frame, Step
from dynamod.message.worker import Cancel, Confirm, Credit, Open, Request

from .base import Sink
from .outbox import WINDOW
from .signing import RequestSigning

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_PART = "a part of an answer"
_SIZES = newer.sizes(Delta | Step)


class InboxStatistics(msgspec.Struct, frozen=True):
    """Frames and deltas received, deltas for streams that had ended, streams open."""

    frames: Annotated[Total, Meta(description="Frames that were received.")]
    deltas: Annotated[Total, Meta(description="Deltas that were received.")]
    late: Annotated[Total, Meta(description="Deltas that were received for streams that had ended.")]
    streams: Annotated[int, Meta(description="Open streams.")]


class Inbox:
    """The streams that one ingress has open at one worker process. `write` sends a payload to the worker.

    `signing`: of a link to another node.
    """

    def __init__(self, write: Callable[[bytes], None], signing: RequestSigning | None = None) -> None:
        self._write, self._signing = write, signing
        self._sinks: dict[int, Sink] = {}
        self._next = 0
        self._uncredited = 0
        self._frames = self._deltas = self._late = 0

    def open(self, endpoint: str, request: Request, sink: Sink) -> int:
        """Start a stream; returns its number."""
        self._next += 1
        stream = self._next
        self._sinks[stream] = sink
        payload = _encoder.encode(Open(stream, endpoint, request))
        self._write(payload if self._signing is None else self._signing.signed(payload))
        return stream

    def cancel(self, stream: int) -> None:
        """Forget a stream and notify the worker. Unknown and ended streams pass."""
        if self._sinks.pop(stream, None) is not None:
            self._write(_encoder.encode(Cancel(stream)))

    def confirm(self, stream: int) -> None:
        """Confirm the acceptance of a stream. Unknown and ended streams pass."""
        if stream in self._sinks:
            self._write(_encoder.encode(Confirm(stream)))

    def frame(self, payload: bytes | memoryview) -> None:
        """Take one frame. Raises msgspec.ValidationError or DecodeError for what is no frame."""
        try:
            frame = _decoder.decode(payload)
        except msgspec.ValidationError:
            deltas, *_ = newer.untyped(payload) or [None]
            if not isinstance(deltas, list):
                raise
            frame = Frame(newer.known(deltas, Delta | Step, _PART))
        sinks, look = self._sinks, False
        self._frames += 1
        for delta in frame.deltas:
            if isinstance(delta, Step):
                try:
                    self._step(delta)
                except ValueError as error:  # a column that is no int32
                    raise msgspec.ValidationError(str(error)) from None
                continue
            self._deltas += 1
            if type(delta) is Accepted:
                look = True
            sink = sinks.get(delta.stream)
            if sink is None:
                self._late += 1  # cancelled here while the delta was on its way
                continue
            if ends(delta):
                look = True
                del sinks[delta.stream]
            sink.delta(delta)
        if look:  # not once per token
            _count_fields(payload)
        self._uncredited += 1
        if self._uncredited >= WINDOW // 4:
            credit, self._uncredited = self._uncredited, 0
            self._write(_encoder.encode(Credit(credit)))

    def _step(self, step: Step) -> None:
        """One token each of many streams: the hot path."""
        streams, offsets, ids = tokens.unpack(step.streams), tokens.unpack(step.offsets), tokens.unpack(step.ids)
        if not len(streams) == len(offsets) == len(ids):
            raise msgspec.ValidationError("the columns of a step differ in length")
        self._deltas += len(streams)
        get = self._sinks.get
        for stream, offset, index in zip(streams, offsets, ids):  # noqa: B905 - lengths are checked above
            sink = get(stream)
            if sink is None:
                self._late += 1
            else:
                sink.token(offset, index)

    def lost(self, why: str, *, link: bool = False) -> None:
        """The connection is gone: every open sink is lost. `link`: see Sink.link_lost."""
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            (sink.link_lost if link else sink.lost)(why)

    def __len__(self) -> int:
        return len(self._sinks)

    def statistics(self) -> InboxStatistics:
        """A snapshot of this connection."""
        return InboxStatistics(self._frames, self._deltas, self._late, len(self._sinks))


def _count_fields(payload: bytes | memoryview) -> None:
    """Count what a frame and its parts have at their ends that only a newer release knows."""
    deltas, *more = newer.parts(payload)
    if more:
        newer.skip_fields("a frame")
    for delta in newer.parts(deltas):
        newer.count_fields(delta, _SIZES, _PART)


class InboxStream:
    """An open stream; see base.Outbound."""

    __slots__ = ("_inbox", "_number")

    def __init__(self, inbox: Inbox, number: int) -> None:
        self._inbox, self._number = inbox, number

    def cancel(self) -> None:
        """Tell the worker that the reader has left; the sink is called no more."""
        self._inbox.cancel(self._number)

    def confirm(self) -> None:
        """Tell the worker that the acceptance has been seen."""
        self._inbox.confirm(self._number)


def ends(delta: Delta) -> Any:
    """Whether this is the last delta of its stream."""
    return type(delta) is Failed or getattr(delta, "finish", None) is not None
