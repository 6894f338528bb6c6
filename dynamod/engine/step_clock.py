"""The clock of an engine's steps: how many there were, how long they usually take, since when the current one runs."""

import asyncio
import time

from .step_times import StepTimes


class StepClock:
    """Counts the steps of an engine, learns how long they take, and knows since when the current one runs.

    `computed`: tokens of all steps, of prompts and answers; `due`: how many these are when the next step is described.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # uvloop's own time is in whole milliseconds, and steps may be shorter.
        self._now = time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time
        self._since: float | None = None
        self._tokens = self.steps = self.computed = self.due = 0
        self._times = StepTimes()

    def begin(self, tokens: int) -> None:
        """A step that computes so many tokens begins."""
        self._since, self._tokens = self._now(), tokens
        self.steps += 1
        self.computed += tokens

    def end(self) -> None:
        """The step is over."""
        if self._since is not None:
            self._times.add(self._tokens, self._now() - self._since)
        self._since = None

    @property
    def current(self) -> tuple[float, int, float] | None:
        """Seconds since the step began, the tokens that it computes, and what such a step usually takes; else None."""
        if self._since is None:
            return None
        return self._now() - self._since, self._tokens, self._times.usual(self._tokens)
