"""What all writers of answers share: choices, counts, the end, and the one place where the handler waits."""

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Annotated, Any

import msgspec
from aiohttp import web

from dynamod.http.errors import json_response
from dynamod.http.metrics import GAP, ModelMetrics
from dynamod.ingress.base import Logprob, ResponseSink
from dynamod.message.errors import EngineFailed, RequestError

FinishReason = Annotated[str, msgspec.Meta(description="stop, length, tool_calls or content_filter")]


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice:
    """One choice of an answer while it is made. `held`: text not yet sent (streams) or all of it (unary)."""

    __slots__ = ("direct", "entries", "held", "index", "last", "offset", "prefix", "reason", "tokens")

    def __init__(self, index: int) -> None:
        self.index = index
        self.last = 0.0  # when its newest tokens came
        self.tokens = 0
        self.reason: str | None = None
        self.prefix = b""  # of its text frames; empty until the first one
        self.direct = False  # text may go straight to the socket: the first frame is out, nothing is held
        self.held: list[str] = []
        self.entries: list[Logprob] = []
        self.offset = 0  # characters in log probabilities already sent


class ResponseWriter(ResponseSink, ABC):
    """A ResponseSink that answers one HTTP request. Calls after the end are ignored: a late engine does no harm.

    `begun`: when the request arrived, on the clock of `perf_counter`. `samples`: choices per prompt. `echo`: what
    stands before the answers, by prompt.
    """

    def __init__(self, meter: ModelMetrics, begun: float, samples: int = 1, echo: Sequence[str] = ()) -> None:
        self.choices: list[Choice] = []
        self.open = True
        self.error: RequestError | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.first: float | None = None  # seconds from the request's arrival to the first token
        self._meter = meter
        self._begun = begun
        self._samples = samples
        self._echo = echo
        self._unfinished = 0
        self._prompt_tokens: dict[int, int] = {}  # as engines said at the end, by prompt
        self.changed = asyncio.Event()  # set when whoever waits has something to do

    @abstractmethod
    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Respond with the answer as it is made. Raises the RequestError that ended it while no byte had been sent.

        Cancelling this (the client left) leaves nothing behind.
        """

    async def in_one_piece(self, make: Callable[[], Any], headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and send what `make` gives then, as JSON. Raises RequestError."""
        while self.open:
            await self.changed.wait()
            self.changed.clear()
        if self.error is not None:
            raise self.error
        try:
            return json_response(make(), headers=headers)
        except (TypeError, ValueError, RecursionError) as error:
            raise EngineFailed("the engine's answer is no JSON") from error

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """An engine has the request: from here on there are choices."""
        if self.open and not self.choices:
            self.choices = [Choice(index) for index in range(choices)]
            self._unfinished = choices
            self.prompt_tokens = prompt_tokens
            if self._echo:
                for choice in self.choices:
                    choice.held.append(self._echo[choice.index // self._samples])

    def logprobs(self, index: int, entries: tuple[Logprob, ...]) -> None:
        """Log probabilities travel with the text that follows."""
        if self.open:
            choice = self.choices[index]
            choice.entries += entries
            choice.direct = False

    def chunk(self, index: int, chunk: Any) -> None:
        """Take the parts of a text engine's own chunk; its ids and its index do not matter."""
        if not self.open:
            return
        choice = self.choices[index]
        self.tick(choice, 0)
        try:
            for part in chunk.get("choices") or ():
                self._part(choice, part)
        except (TypeError, ValueError, AttributeError):
            self.fail(EngineFailed("the engine sent a chunk that is no OpenAI chunk"))

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """A choice is complete; the last one ends the answer."""
        choice = self.choices[index] if self.open else None
        if choice is None or choice.reason is not None:
            return
        choice.reason = reason
        self.completion_tokens += completion_tokens
        if completion_tokens > choice.tokens:  # a text engine that counts only at the end
            self._meter.output_tokens += completion_tokens - choice.tokens
        if prompt_tokens is not None:
            self._prompt_tokens[index // self._samples] = prompt_tokens
            self.prompt_tokens = sum(self._prompt_tokens.values())
        self._unfinished -= 1
        self._finished(choice)
        if not self._unfinished:
            self.close()

    def fail(self, error: RequestError) -> None:
        """The answer ends here with an error."""
        if self.open:
            self.error = error
            self._failed(error)
            self.close()

    def close(self) -> None:
        """Take nothing more and wake whoever waits for the end."""
        self.open = False
        self.changed.set()

    def usage(self, completion: int) -> Usage:
        """What an answer of so many tokens has used."""
        return Usage(self.prompt_tokens, completion, self.prompt_tokens + completion)

    @property
    def output_tokens(self) -> int:
        """Tokens made so far."""
        return self.completion_tokens or sum(choice.tokens for choice in self.choices)

    @property
    def reasons(self) -> str:
        """Why it ended, for the log."""
        if self.error is not None:
            return self.error.code or self.error.kind
        return ",".join(sorted({choice.reason or "none" for choice in self.choices})) or "none"

    def tick(self, choice: Choice, tokens: int) -> None:
        """Count tokens and the time since the last ones. Runs once per chunk."""
        now = perf_counter()
        meter = self._meter
        last = choice.last
        if last:
            if tokens:  # Histogram.observe, written out
                gap = meter.gap
                seconds = now - last
                gap.counts[bisect_left(GAP, seconds if tokens == 1 else seconds / tokens)] += tokens
                gap.total += seconds
        elif self.first is None:
            self.first = now - self._begun
            meter.first_token.observe(self.first)
            meter.queued -= 1
        choice.last = now
        choice.tokens += tokens
        meter.output_tokens += tokens

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        """Take what a text engine says of a choice. Raises TypeError, ValueError or AttributeError for nonsense."""
        raise TypeError("this answer has no parts")

    def _finished(self, choice: Choice) -> None:
        """A choice is complete."""

    def _failed(self, error: RequestError) -> None:
        """The answer ends with an error."""
