"""What all writers of answers share: choices, counts, the end, and the one place where the handler waits."""

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Annotated, Any

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import Place
from dynamod.http.metrics import GAP, ModelMetrics
from dynamod.ingress.base import Logprob, ResponseSink
from dynamod.message.discovery import Instance
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.openai import REASONING_NAMES

from .details import Details, RequestMetrics

FinishReason = Annotated[str, msgspec.Meta(description="stop, length, tool_calls or content_filter")]


class PromptDetails(msgspec.Struct, frozen=True):
    """Details of prompt tokens. `cached_tokens`: tokens that the engine had in its cache and did not compute."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Of the tokens of the answers."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object. Details that no worker reported are left out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET


class Choice:
    """One choice of an answer while it is made. `held`: text not yet sent (streams) or all of it (unary)."""

    __slots__ = ("direct", "entries", "held", "index", "last", "offset", "prefix", "reason", "scored", "tokens")

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
        self.scored = False  # those of its prompt are known


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
        self.details = Details(begun)
        self._samples = samples
        self._echo = echo
        self._unfinished = 0
        self._prompt_tokens: dict[int, int] = {}  # as engines said at the end, by prompt
        self.prompt_ids: Sequence[Sequence[int]] = ()
        self.answer_ids: Sequence[Sequence[int]] = ()
        self.changed = asyncio.Event()  # set when the waiting response has something to do

    @abstractmethod
    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Respond with the answer as it is made. Raises the RequestError that ended it while no byte had been sent.

        Cancelling this (the client left) leaves nothing open.
        """

    async def complete(self) -> None:
        """Wait for the end. Raises the RequestError that it was."""
        while self.open:
            await self.changed.wait()
            self.changed.clear()
        if self.error is not None:
            raise self.error

    async def in_one_piece(self, make: Callable[[], Any], headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and send what `make` gives then, as JSON. Raises RequestError."""
        await self.complete()
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

    def echoed(self, texts: Sequence[str]) -> None:
        """The texts of the prompts, one per prompt, for a request that asks for its prompts in the answer."""
        self._echo = texts

    def recorded(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        """Kept as they are: the lists of the answers grow."""
        self.prompt_ids, self.answer_ids = prompts, answers

    def prompt_logprobs(self, index: int, entries: tuple[Logprob, ...], ids: Sequence[Sequence[int]]) -> None:
        """Where the prompt's text stands before that of the answer, they stand before those of the answer."""
        choice = self.choices[index] if self.open else None
        if choice is not None and not choice.scored:
            choice.scored = True
            self._scored(choice, entries, ids)

    def _scored(self, choice: Choice, entries: tuple[Logprob, ...], ids: Sequence[Sequence[int]]) -> None:
        """The log probabilities of a choice's prompt have come."""
        choice.entries[:0] = entries

    def placed(self, index: int, worker: Instance | None, prefill: Instance | None = None) -> None:
        """Noted for the end."""
        self.details.placed(index, worker, prefill)

    def request_metrics(self) -> RequestMetrics:
        """What is known at the end."""
        last, most = max(choice.last for choice in self.choices), max(choice.tokens for choice in self.choices)
        return self.details.metrics(self.first, last, self.completion_tokens, most - 1)

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
        try:
            if usage := chunk.get("usage"):
                self.counted(index, **_counts(usage))
            if parts := chunk.get("choices"):
                self.tick(choice, 0)
                for part in parts:
                    self._part(choice, part)
                if (facts := self.details.facts) is not None:
                    facts.said(index, parts)
        except (TypeError, ValueError, AttributeError):
            self.fail(EngineFailed("the engine sent a chunk that is no OpenAI chunk"))

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        """Noted for the end."""
        if cached_tokens is not None:
            self.details.cached(index // self._samples, cached_tokens)
        if reasoning_tokens is not None:
            self.details.reasoned(index, reasoning_tokens)

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
        """Take nothing more and wake the tasks that wait for the end."""
        self.open = False
        self.changed.set()

    def begins(self) -> None:
        """The first bytes of a stream have gone out."""
        if (timeline := self.details.timeline) is not None:
            timeline.first_write = perf_counter()

    def usage(self, completion: int) -> Usage:
        """What an answer of so many tokens has used."""
        cached, reasoning = self.cached_tokens, self.details.reasoning_tokens
        return Usage(
            self.prompt_tokens,
            completion,
            self.prompt_tokens + completion,
            msgspec.UNSET if cached is None else PromptDetails(cached),
            msgspec.UNSET if reasoning is None else CompletionDetails(min(reasoning, completion)),
        )

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompts that were in caches; None as long as it is not known of each prompt."""
        found = self.details.cached_tokens(len(self.choices) // self._samples)
        return None if found is None else min(found, self.prompt_tokens)

    @property
    def output_tokens(self) -> int:
        """Tokens made so far."""
        return self.completion_tokens or sum(choice.tokens for choice in self.choices)

    @property
    def places(self) -> Sequence[Place]:
        """The workers that took it, where the job is `timed`."""
        return self.details.places

    @property
    def reasons(self) -> str:
        """Why it ended, for the log."""
        if self.error is not None:
            return self.error.code or self.error.kind
        choices = self.choices
        if len(choices) == 1:  # as of most requests: a set and a sorted list would cost more than all other fields
            return choices[0].reason or "none"
        return ",".join(sorted({choice.reason or "none" for choice in choices})) or "none"

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


def named(delta: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A delta whose reasoning, whatever the engine calls it, is in this field."""
    if not any(name in delta for name in REASONING_NAMES):
        return delta
    found = next((value for name in REASONING_NAMES if (value := delta.get(name))), None)
    rest = {name: value for name, value in delta.items() if name not in REASONING_NAMES}
    return rest if found is None else {**rest, field: found}


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    """What an engine's own usage says in addition to its totals. Raises AttributeError for what is no usage."""
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    found = {"cached_tokens": prompt.get("cached_tokens"), "reasoning_tokens": completion.get("reasoning_tokens")}
    return {name: count for name, count in found.items() if type(count) is int and count >= 0}
