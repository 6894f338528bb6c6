"""What every transport offers. An ingress opens streams at instances; a worker answers through `Reply`."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import RequestError
from dynamod.message.ingress import Accepted, Delta, Failed, Items, Logprobs, PromptLogprobs, Text, Tokens
from dynamod.message.worker import Request

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
"""Starts a task that belongs to an actor (`context.task`)."""

CONFIRM = 2.0
"""Seconds within which a reader confirms that it has seen an acceptance; see `message.worker.Confirm`."""


class Sink(Protocol):
    """Receives the deltas of one stream, called directly from the event loop: no queue, no task switch.

    After a delta with `finish`, a `Failed`, `lost` or `link_lost`, nothing more comes. Must not raise. Inherit from
    this to have `token` in terms of `delta`, and `link_lost` in terms of `lost`.
    """

    def delta(self, delta: Delta) -> None:
        """One delta, in the order in which the worker sent them. Doubled frames are possible, see offsets."""

    def token(self, offset: int, index: int) -> None:
        """The same as a `Tokens` delta with the single id `index` and no finish: nearly all that ever comes."""
        self.delta(Tokens(0, offset, tokens.pack((index,))))

    def lost(self, why: str) -> None:
        """The connection is gone, or was never made: what the worker did after the last delta is not known."""

    def link_lost(self, why: str) -> None:
        """As `lost`, but only the connection is known to have failed: the worker may live and be reached again."""
        self.lost(why)


class Outbound(Protocol):
    """An open stream, seen from the ingress."""

    def cancel(self) -> None:
        """The reader leaves: the worker is notified and the sink is called no more."""

    def confirm(self) -> None:
        """Tell the worker that the acceptance of the request has been seen; see `message.worker.Confirm`."""


class Transport(Protocol):
    """The ingress side."""

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance's endpoint. Never blocks or raises: failure is reported by `sink.lost`."""
        ...


class Destination(Protocol):
    """Where a `Reply` puts its deltas. `origin`: the reader."""

    streams: "dict[int, Reply]"
    origin: object

    def add(self, delta: Delta) -> None:
        """Take one delta."""

    def backlog(self, stream: int) -> int:
        """Items of a stream that wait."""
        ...


class Reply:
    """The worker's side of one stream. All deltas added in one turn of the event loop leave in one frame.

    Every call is ignored after the end or after a cancel, so an engine needs no checks of its own. `cancelled`: the
    reader has left. `origin`: the reader, the same object for all streams of one ingress process. `signer`: the node
    that signed the request; empty: none did, or the request came from this node.
    """

    __slots__ = (
        *("_callbacks", "_confirm", "_endings", "_offset", "_outbox", "_stream"),
        *("cancelled", "ended", "origin", "signer"),
    )

    def __init__(self, outbox: Destination, stream: int) -> None:
        self._outbox = outbox
        self._stream = stream
        self._offset = 0
        self._callbacks: list[Callable[[], object]] = []
        self._endings: list[Callable[[bool], None]] = []
        self._confirm: Callable[[], object] | None = None
        self.origin, self.signer = outbox.origin, ""
        self.cancelled = False
        self.ended = False

    @property
    def sent(self) -> int:
        """Tokens, characters or items of the answer so far."""
        return self._offset

    @property
    def backlog(self) -> int:
        """Items that wait for a slow reader. Answers are bounded on their own; what continues forever must look."""
        return self._outbox.backlog(self._stream)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the reader leaves (at once if it has)."""
        if self.cancelled:
            callback()
        elif not self.ended:
            self._callbacks.append(callback)

    def on_confirm(self, callback: Callable[[], object]) -> None:
        """Call `callback` each time when the reader confirms that it has seen the acceptance."""
        self._confirm = callback

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(cancelled)` once when the stream has ended, for whatever reason (at once if it has)."""
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
            self._tell_end()

    def confirm(self) -> None:
        """The reader has seen the acceptance."""
        if self._confirm is not None and not self.ended:
            self._confirm()

    def accepted(self) -> None:
        """The actor has taken the request."""
        self._add(Accepted(self._stream), None)

    def tokens(self, ids: bytes, count: int, finish: str | None = None) -> None:
        """New token ids, packed int32, and how many they are: the hot path."""
        if finish is not None or self.ended or self.cancelled:
            self._add(Tokens(self._stream, self._offset, ids, finish), finish)
        else:
            self._outbox.add(Tokens(self._stream, self._offset, ids))
        self._offset += count

    def cached_tokens(self, count: int) -> None:
        """Tokens of the prompt that the engine had in its cache: once, in front of the first ids."""
        self._add(Tokens(self._stream, self._offset, b"", None, count), None)

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

    def prompt_logprobs(
        self, chosen: tuple[float | None, ...], top: tuple[tuple[tuple[int, float], ...], ...] = ()
    ) -> None:
        """Log probabilities of the prompt, before the first tokens."""
        self._add(PromptLogprobs(self._stream, chosen, top), None)

    def failed(
        self, error: str, message: str, *, param: str | None = None, retry: bool = False, code: str | None = None
    ) -> None:
        """End the stream with an error (a class name of message.errors)."""
        self._add(Failed(self._stream, error, message, param, retry, code), "error")

    def displaced(self, why: str) -> None:
        """End the stream so that its sender tries elsewhere, and the work for it as if the reader had left."""
        callbacks, self._callbacks = self._callbacks, []
        self.failed("EngineFailed", why, retry=True)
        for callback in callbacks:
            callback()

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
            self._tell_end()

    def _tell_end(self) -> None:
        endings, self._endings = self._endings, []
        for callback in endings:
            callback(self.cancelled)


Receive = Callable[[str, Request, Reply], None]
"""What a worker's side calls for a new stream: endpoint, request, reply. Must not raise."""
