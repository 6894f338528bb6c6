"""One worker after the other."""

from .base import Choice, Policy, Question


class RoundRobin(Policy):
    """Workers take turns in the order of their ids."""

    def choose(self, question: Question) -> Choice:
        """The worker whose turn it is."""
        ids, turn = question.ids, question.turn
        place = turn % len(ids)
        return Choice(ids[place], f"place {place + 1} of {len(ids)} in the order of their ids")
