"""Which ids may come next, for engines of users that choose tokens themselves."""

from collections.abc import Callable, Sequence
from typing import Any

from dynamod.message.errors import EngineFailed

from .matcher import Matcher


class AnswerMask:
    """The form of one answer. Each method is given the ids that the handler has generated for the request, in order.

    They may be more or fewer than at the call before: it follows. `make`: a matcher for the answer from its beginning,
    with what another instance has generated. Methods raise EngineFailed for an id that may not come where it is, or a
    form that is too complex. Not for use by two threads at once.
    """

    def __init__(self, make: Callable[[], Matcher]) -> None:
        self._make = make
        self._matcher = make()
        self._ids: list[int] = []

    def allowed(self, generated: Sequence[int]) -> bytes:
        """One bit per id of the vocabulary, lowest first, padded to whole 32-bit words: 1 where it may come next.

        The ids that end an answer may come where the answer may end.
        """
        return self._at(generated).mask()

    def apply(self, logits: Any, generated: Sequence[int]) -> None:
        """Set the logits of ids that may not come to minus infinity, in place.

        `logits`: of one position, a list of floats or a one-dimensional array of NumPy or torch; it may be longer than
        the vocabulary. Raises ValueError for one with several dimensions.
        """
        import numpy as np

        if len(getattr(logits, "shape", (0,))) != 1:
            raise ValueError(f"the logits of one position are needed, and these have the shape {tuple(logits.shape)}")
        bits = np.unpackbits(np.frombuffer(self.allowed(generated), np.uint8), bitorder="little")
        out = np.ones(len(logits), bool)
        out[: len(bits)] = bits[: len(out)] == 0
        if isinstance(logits, list):
            for index in np.flatnonzero(out).tolist():
                logits[index] = float("-inf")
        elif type(logits).__module__.partition(".")[0] == "torch":
            import torch  # type: ignore[import-not-found,unused-ignore]  # there, as it has made them

            logits[torch.from_numpy(out).to(logits.device)] = float("-inf")
        else:
            logits[out] = float("-inf")

    def may_end(self, generated: Sequence[int]) -> bool:
        """Whether the answer would be complete."""
        return self._at(generated).may_end

    def must_end(self, generated: Sequence[int]) -> bool:
        """Whether nothing may follow but an id that ends the answer."""
        return self._at(generated).must_end

    def _at(self, generated: Sequence[int]) -> Matcher:
        ids, known = list(generated), len(self._ids)
        if ids[:known] != self._ids:
            self._restart()
            known = 0
        try:
            for index in ids[known:]:
                self._matcher.accept(index)
                self._ids.append(index)
        except EngineFailed:
            self._restart()  # a matcher that has refused an id refuses all others
            raise
        return self._matcher

    def _restart(self) -> None:
        self._matcher, self._ids = self._make(), []
