"""Log probabilities of a prompt's tokens: where the thread puts them, and the loop takes them."""

from collections.abc import Sequence

from .sampling import Floats, scored

SCORED = 32
"""Tokens of prompts that a step scores, at most: each needs a row of logits as large as the vocabulary."""


class Scores:
    """Of the tokens `ids`. `top`: how many of the best at each place.

    The thread fills it in; the loop reads it when the first token of the answer is there. Steps that are repeated give
    the same again.
    """

    def __init__(self, ids: Sequence[int], top: int) -> None:
        self._ids, self._top = ids, top
        self._chosen: list[float | None] = [None] * len(ids)
        self._best: list[tuple[tuple[int, float], ...]] = [()] * len(ids)

    def rows(self, start: int, count: int) -> int:
        """How many of `count` tokens from position `start` on have another token of the prompt after them."""
        return max(0, min(start + count, len(self._ids) - 1) - start)

    def take(self, start: int, logits: Floats) -> None:
        """The rows (tokens, vocabulary) after the tokens from `start` on."""
        for place, row in enumerate(logits, start + 1):
            found = scored(row, self._ids[place], self._top)
            self._chosen[place], self._best[place] = found.logprob, found.top

    def result(self) -> tuple[tuple[float | None, ...], tuple[tuple[tuple[int, float], ...], ...]]:
        """As `Reply.prompt_logprobs` takes them."""
        return tuple(self._chosen), tuple(self._best) if self._top else ()
