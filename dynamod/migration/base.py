"""What a request in flight works with: who gives places, takes the answer, counts, and knows of crashes; its clocks."""

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dynamod.message.discovery import Instance
from dynamod.message.errors import RequestError
from dynamod.message.worker import Request
from dynamod.router.placement import Placement


class Output(Protocol):
    """What makes text of an engine's deltas, and knows when the answer is over (preprocess.output).

    An engine sends ids or text.
    """

    finish: str | None
    completion_tokens: int

    def token(self, index: int) -> str:
        """`push` of one id behind which the engine goes on."""
        ...

    def push(self, ids: Sequence[int], engine_finish: str | None = None) -> str:
        """Text for new ids; sets `finish` when the answer is over. `engine_finish`: these are the engine's last."""
        ...

    def push_text(self, text: str, tokens: int = 0, engine_finish: str | None = None) -> str:
        """Text to show for new text, which stands for so many tokens."""
        ...

    def end(self, finish: str) -> str:
        """The engine is done: what was held back."""
        ...


class ChoiceSink(Protocol):
    """Where the answer goes: the part of ingress.base.ResponseSink that one choice calls."""

    def text(self, index: int, text: str, tokens: int) -> None:
        """New text."""

    def chunk(self, index: int, chunk: Any) -> None:
        """A value that the engine made itself."""

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        """Counts beside those of `text` and `finish`, when they are known."""

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """The choice is complete."""

    def fail(self, error: RequestError) -> None:
        """The choice ends with an error."""


class MigrationCounts(Protocol):
    """Counts migrations (http.metrics.MigrationCounts)."""

    def broke(self, ongoing: bool) -> None:
        """A request is sent again; `ongoing`: part of its answer had come."""

    def too_long(self) -> None:
        """An answer could not move because of its length."""

    def settled(self, seconds: float, ok: bool) -> None:
        """Another instance has taken it (or none has) that long after the stream broke."""


class AcquirePlace(Protocol):
    """Waits for a place at an instance that was not tried (router.placement.DispatcherClient.acquire)."""

    def __call__(self, exclude: Collection[int], *, again: bool, alone: bool, received: int) -> Awaitable[Placement]:
        """The arguments are those of `router.placement.Acquire`. Raises Overloaded."""
        ...


class Suspicions(Protocol):
    """Who knows why workers ended, and remembers which requests were there (ingress.suspicions)."""

    async def cause(self, instance: Instance, timeout: float | None = None) -> str:
        """Why an instance ended, if it crashed or hung; empty when it was ended on purpose, or nobody knows.

        `timeout`: seconds to wait for that; None: as long as it takes when the connection to it has failed.
        """
        ...

    def suspect(self, request: Request) -> None:
        """The request was at an instance that crashed or hung."""

    def acquit(self, request: Request) -> None:
        """An instance has lived through it, alone."""

    def convict(self, request: Request, cause: str) -> RequestError:
        """It was alone there. Returns the error of this request, and of those that are like it."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: until an instance accepts, until the first token, between tokens, for all. None: no limit."""

    queue: float | None = 30.0
    first: float | None = 600.0
    gap: float | None = 120.0
    total: float | None = None

    def passed(self, waited: float, *, accepted: bool, answers: bool) -> str:
        """Which clock has passed, of an attempt from which nothing has come for so long; empty: none.

        `answers`: some of the answer has come, from this attempt: each next instance has the whole prompt before it.
        """
        limit, why = self.queue, "no instance took the request within"
        if answers:
            limit, why = self.gap, "the answer paused for more than"
        elif accepted:
            limit, why = self.first, "no token came within"
        return "" if limit is None or waited <= limit else f"{why} {limit:g} s"
