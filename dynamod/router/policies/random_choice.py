"""Chance."""

from .base import Choice, Policy, Question


class RandomChoice(Policy):
    """Any worker, each as likely as the others."""

    def choose(self, question: Question) -> Choice:
        """A worker by chance."""
        return Choice(question.random.choice(question.ids), "chance", tuple(question.ids))
