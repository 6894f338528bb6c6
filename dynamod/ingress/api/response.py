"""What both kinds of answer share: choices, counts, the end, and the one place where the handler waits."""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from dynamod.http.metrics import GAP, ModelMetrics
from dynamod.ingress.base import Job, Logprob
from dynamod.message.errors import RequestError

from .validate import text_prompts


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


class ResponseWriter:
    """An ResponseSink without a form. Calls after the end are ignored, so that a late engine harms nobody."""

    def __init__(self, job: Job, meter: ModelMetrics, begun: float) -> None:
        self.job = job
        self.choices: list[Choice] = []
        self.open = True
        self.error: RequestError | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.first: float | None = None  # seconds from the request's arrival to the first token
        self._meter = meter
        self._begun = begun
        self._unfinished = 0
        self._prompt_tokens: dict[int, int] = {}  # as engines said at the end, by prompt
        self._samples = job.request.n or 1
        self._changed = asyncio.Event()

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """See ResponseSink."""
        if not self.open or self.choices:
            return
        self.choices = [Choice(index) for index in range(choices)]
        self._unfinished = choices
        self.prompt_tokens = prompt_tokens
        if getattr(self.job.request, "echo", None):
            prompts = text_prompts(self.job.request.prompt) or []  # type: ignore[union-attr]
            for choice in self.choices:
                choice.held.append(prompts[choice.index // self._samples])

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """See ResponseSink."""
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
        """See ResponseSink."""
        if self.open:
            self.error = error
            self._failed(error)
            self.close()

    def close(self) -> None:
        """Take nothing more and wake whoever waits for the end."""
        self.open = False
        self.wake()

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

    def usage(self) -> dict[str, int]:
        """OpenAI's usage object."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

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

    def wake(self) -> None:
        """End the `wait`: the answer has changed."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        self._changed.clear()
        await self._changed.wait()

    def _finished(self, choice: Choice) -> None:
        """For the form: a choice is complete."""

    def _failed(self, error: RequestError) -> None:
        """For the form: the answer ends with an error."""
