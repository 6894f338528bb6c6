"""How long steps of an engine take, learned from steps: least squares, older ones count less."""

from collections.abc import Iterable

import numpy as np

from .observation import StepSample

KEEP = 0.98
"""Weight of what was known before, at each tick with steps."""

_PREFILL, _CONTEXT = 1e3, 1e5
"""Tokens that count as one in the equations, so that their numbers are of one size."""


class StepTimes:
    """Seconds of a step: `prompt` + `token` x prompt tokens if there are any, + `decode` + `kv` x KV tokens if any."""

    def __init__(self) -> None:
        self._left = np.eye(4) * 1e-6
        self._right = np.zeros(4)
        self.known = False
        self.prompt = self.token = self.decode = self.kv = 0.0

    def learn(self, steps: Iterable[StepSample]) -> None:
        """Take steps that were measured. Those without any tokens say nothing."""
        steps = list(steps)
        rows = [(one.prefill > 0, one.prefill / _PREFILL, one.context > 0, one.context / _CONTEXT) for one in steps]
        if not rows:
            return
        table = np.array(rows, float)
        seconds = np.array([one.seconds for one in steps])
        self._left = KEEP * self._left + table.T @ table
        self._right = KEEP * self._right + table.T @ seconds
        found = np.maximum(np.linalg.solve(self._left + np.eye(4) * 1e-9, self._right), 0.0)
        prompt, token, decode, kv = (float(value) for value in found)
        self.prompt, self.token, self.decode, self.kv = prompt, token / _PREFILL, decode, kv / _CONTEXT
        self.known = True

    def prefill(self, tokens: int) -> float:
        """Seconds that a prompt of so many tokens takes."""
        return self.prompt + self.token * max(1, tokens)

    def between(self, context: float) -> float:
        """Seconds between two tokens of each answer, with so many KV tokens in use and no prompts."""
        return self.decode + self.kv * context
