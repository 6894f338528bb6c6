"""The better of two."""

from typing import ClassVar

from .base import Choice, Policy, Question, draw, lowest


class PowerOfTwo(Policy):
    """Two workers are drawn, and the one with fewer requests is taken: several routers do not all find the same one."""

    needs_load: ClassVar[bool] = True

    def choose(self, question: Question) -> Choice:
        """The better of two workers drawn by chance."""
        pair = question.random.sample(range(len(question.ids)), 2)
        drawn, counts = [question.ids[place] for place in pair], [question.requests[place] for place in pair]
        return draw(drawn, lowest(counts), question.random, "fewer requests of two drawn")
