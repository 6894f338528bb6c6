"""Which ids may come next in one answer that keeps to a form."""

from collections.abc import Iterable
from typing import Self

from llguidance import LLMatcher

from dynamod.message.errors import EngineFailed

from .vocabulary import Vocabulary


class Matcher:
    """One answer, from its first token on. `vocabulary`: of its model. Not for use by two threads at once."""

    __slots__ = ("_matcher", "vocabulary")

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self.vocabulary = vocabulary

    def mask(self) -> bytes:
        """One bit per id, lowest first, padded to whole 32-bit words: which may come next, EOS too.

        Raises EngineFailed when the form is too complex for this place.
        """
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def accept(self, index: int) -> None:
        """An id has come. Raises EngineFailed when it may not."""
        if not self._matcher.consume_token(index):
            self._check()
            raise EngineFailed(f"token {index} may not come here by the form of the answer")

    def replay(self, ids: Iterable[int]) -> None:
        """Ids that another instance has generated. Raises EngineFailed."""
        for index in ids:
            self.accept(index)

    def behind(self, ids: Iterable[int]) -> Self:
        """Itself, when it has read them as `replay` does. Raises EngineFailed."""
        self.replay(ids)
        return self

    @property
    def may_end(self) -> bool:
        """Whether the answer would be complete."""
        return self._matcher.is_accepting()

    @property
    def must_end(self) -> bool:
        """Whether nothing may follow but EOS."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = " ".join(self._matcher.get_error().split())
            raise EngineFailed(f"the form of the answer cannot be followed: {reason[:200]}")
