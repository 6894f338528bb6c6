"""The lowest cost, as `router.cost` counts it: cached prefixes against load."""

import math
from collections.abc import Sequence
from typing import ClassVar

from .base import EQUAL, OVERLOAD, Choice, Policy, Question, draw, lowest, overload_bound


class KvCost(Policy):
    """The worker with the lowest cost, without overloaded ones. The session's last worker decides between equal costs.

    With a temperature chance decides, by softmax over the costs.
    """

    needs_blocks: ClassVar[bool] = True
    needs_load: ClassVar[bool] = True
    soft_sessions: ClassVar[bool] = False

    def choose(self, question: Question) -> Choice:
        """The worker with the lowest cost."""
        if question.temperature > 0:
            return _by_softmax(question)
        ids, requests, rule = question.ids, question.requests, "lowest total"
        best = lowest(question.costs())
        if max([requests[place] for place in best]) > OVERLOAD:
            calm = _not_overloaded(requests)
            if not set(best) <= set(calm):
                rule = "lowest total, overloaded workers left out"
                costs = question.costs()
                best = [calm[place] for place in lowest([costs[place] for place in calm])]
        choice = draw(ids, best, question.random, rule)
        if question.sticky in choice.tied:
            return Choice(question.sticky, f"{rule}, the session's last worker among equal ones")
        return choice


def _by_softmax(question: Question) -> Choice:
    costs, calm = question.costs(), _not_overloaded(question.requests)
    ids, weights = [question.ids[place] for place in calm], softmax([costs[p] for p in calm], question.temperature)
    place = question.random.choices(range(len(ids)), weights)[0]
    text = f"chance {weights[place]:.3f} by softmax at temperature {question.temperature:g}"
    return Choice(ids[place], text, tuple(ids))


def _not_overloaded(requests: Sequence[int]) -> list[int]:
    """Places of the workers that answer not many more requests than the others (see base.OVERLOAD)."""
    bound = overload_bound(requests)
    return [place for place, count in enumerate(requests) if count <= bound]


def softmax(costs: Sequence[float], temperature: float) -> list[float]:
    """Probabilities of costs, the lowest most likely: scaled by their range, as in NVIDIA Dynamo's scheduler.rs."""
    least = min(costs)
    spread = max(costs) - least
    if spread <= EQUAL:
        return [1 / len(costs)] * len(costs)
    raw = [math.exp((least - cost) / spread / temperature) for cost in costs]  # the best has 1, so no sum is 0
    whole = sum(raw)
    return [value / whole for value in raw]
