"""What every post offers. An ingress opens streams at instances; a worker answers through `Reply`."""

from collections.abc import Callable
from typing import Any, Protocol

from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.errors import RequestError
from dynamod.message.ingress import Delta, Failed, Tokens
from dynamod.message.worker import Request


class Sink(Protocol):
    """Receives the deltas of one stream, called directly from the event loop: no queue, no task switch.

    After a delta with `finish`, a `Failed`, or `lost`, nothing more comes. Must not raise. Inherit from this to have
    `token` in terms of `delta`.
    """

    def delta(self, delta: Delta) -> None:
        """One delta, in the order in which the worker sent them. Doubled frames are possible, see offsets."""

    def token(self, offset: int, index: int) -> None:
        """The same as a `Tokens` delta with the single id `index` and no finish: nearly all that ever comes."""
        self.delta(Tokens(0, offset, tokens.pack((index,))))

    def lost(self, why: str) -> None:
        """The connection is gone, or was never made: what the worker did after the last delta is not known."""


class Outbound(Protocol):
    """An open stream, seen from the ingress."""

    def cancel(self) -> None:
        """The reader leaves: the worker is told and the sink is called no more."""


class Transport(Protocol):
    """The ingress side."""

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Send `request` to the instance's endpoint. Never blocks or raises: failure is told to `sink.lost`."""
        ...

    async def close(self) -> None:
        """Close all connections; open sinks are told `lost`."""


class Reply(Protocol):
    """The worker's side of one stream. All deltas added in one turn of the event loop leave in one frame.

    Every call is ignored after the end or after a cancel, so an engine needs no checks of its own.
    """

    @property
    def cancelled(self) -> bool:
        """Whether the reader has left."""
        ...

    @property
    def origin(self) -> object:
        """Who reads: the same object for all streams of one ingress process."""
        ...

    @property
    def backlog(self) -> int:
        """Items that wait for a slow reader. Answers are bounded by themselves; what goes on for ever must look."""
        ...

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the reader leaves (at once if it has)."""

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(cancelled)` once when the stream has ended, for whatever reason (at once if it has)."""

    def accepted(self) -> None:
        """The actor has taken the request."""

    def tokens(self, ids: bytes, count: int, finish: str | None = None) -> None:
        """New token ids, packed int32, and how many they are."""

    def text(self, text: str, tokens: int = 0, finish: str | None = None, prompt_tokens: int | None = None) -> None:
        """New text of a text engine."""

    def items(self, items: tuple[Any, ...], finish: str | None = None) -> None:
        """Values of a user's endpoint, or chunk dicts of a text engine."""

    def logprobs(self, chosen: tuple[float, ...], top: tuple[tuple[tuple[int, float], ...], ...] = ()) -> None:
        """Log probabilities of the tokens that the next `tokens` call brings."""

    def failed(
        self, error: str, message: str, *, param: str | None = None, retry: bool = False, code: str | None = None
    ) -> None:
        """End the stream with an error (a class name of message.errors)."""

    def raised(self, error: RequestError) -> None:
        """End the stream with this error."""


Receive = Callable[[str, Request, Reply], None]
"""What a worker's side calls for a new stream: endpoint, request, reply. Must not raise."""


def refused(stream: int, why: str) -> Failed:
    """The answer to a request that nobody took."""
    return Failed(stream, "Overloaded", why, None, True)
