"""The fewest requests."""

from typing import ClassVar

from .base import Choice, Policy, Question, draw, lowest


class LeastLoaded(Policy):
    """The worker that answers the fewest requests."""

    needs_load: ClassVar[bool] = True

    def choose(self, question: Question) -> Choice:
        """The worker with the fewest requests; chance decides among equal ones."""
        return draw(question.ids, lowest(question.requests), question.random, "fewest requests")
