"""What a request in flight works with: the choice, places for it, where its answer goes, counts, and its clocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import RequestError
from dynamod.message.ingress import Logprobs, PromptLogprobs
from dynamod.message.worker import Request
from dynamod.observe.timeline import NOWHERE, Mark, Timeline
from dynamod.router.placement import Placement
from dynamod.router.router import Prompt

if TYPE_CHECKING:
    from .stages import Ask, MakeStage

TakeLogprobs = Callable[[int, Logprobs | PromptLogprobs, Sequence[int]], None]
"""Gets the choice's index, log probabilities and the ids that they are about."""


class Output(Protocol):
    """What makes text of an engine's deltas, and knows when the answer is over (preprocess.output).

    An engine sends ids or text.
    """

    finish: str | None
    completion_tokens: int

    def token(self, index: int) -> str:
        """`push` of one id after which the engine continues."""
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
        """Counts in addition to those of `text` and `finish`, when they are known."""

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


class Places(Protocol):
    """Places at instances for one choice."""

    def acquire(self, ask: Ask) -> Awaitable[Placement]:
        """Wait for a place. Raises Overloaded."""
        ...

    def available(self, tried: Collection[int], received: int) -> bool:
        """Whether an instance that was not tried can continue after what came."""
        ...

    def neighbours(self, instance: Instance) -> Collection[int]:
        """Instances on the same node: see `Tried.link_lost`."""
        ...


class Choice(msgspec.Struct, frozen=True):
    """One choice of a request. Of `request`, any kind that the engine takes, `request_id` is read.

    `exact`: the engine continues after given tokens exactly, by `prior_output`. `limit`: migrations; `longest`: tokens
    of prompt and answer above which an answer is not continued elsewhere. `stages`: see `stages.Stage.order`.

    For stages: `card` of the model, `prompt` as the router has it. `placed` gets the instances of the worker that
    answers and of the one that computes the prompt, None for the one that is not known yet; it is None where no reader
    wants them. `mark` takes marks for `timeline`, that of the request.
    """

    request: Request
    output: Output
    sink: ChoiceSink
    index: int
    exact: bool
    limit: int
    longest: int | None = None
    prompt_tokens: int = 0
    logprobs: TakeLogprobs | None = None
    stages: Sequence[MakeStage] = ()
    card: ModelCard = ModelCard("")
    prompt: Prompt = Prompt("", 0)
    placed: Callable[[Instance | None, Instance | None], None] | None = None
    mark: Callable[[Mark], None] = NOWHERE
    timeline: Timeline | None = None

    def too_long(self, received: int) -> bool:
        """Whether the answer may not be continued elsewhere, because of its length."""
        return self.longest is not None and self.exact and self.prompt_tokens + received > self.longest


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
