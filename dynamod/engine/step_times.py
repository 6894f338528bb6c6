"""How long the steps of an engine usually take, learned while it runs. Pure."""

from collections import deque
from statistics import median

KEPT_STEPS = 15
"""Steps of each size whose times are kept."""


class StepTimes:
    """Learns the median time per token of recent steps, by size: powers of two of the tokens that a step computes."""

    def __init__(self) -> None:
        self._by_size: dict[int, deque[float]] = {}

    def add(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        size = max(1, tokens).bit_length()
        kept = self._by_size.get(size)
        if kept is None:
            kept = self._by_size[size] = deque(maxlen=KEPT_STEPS)
        kept.append(seconds / max(1, tokens))

    def usual(self, tokens: int) -> float:
        """Seconds that a step of so many tokens usually takes; 0 while no step has been seen.

        A size that was not seen yet counts as the nearest smaller one, else as the nearest larger one: small steps
        take longer per token, so the estimate is rather too long than too short.
        """
        size = max(1, tokens).bit_length()
        smaller = [one for one in self._by_size if one <= size]
        nearest = max(smaller) if smaller else min(self._by_size, default=0)
        return median(self._by_size[nearest]) * max(1, tokens) if nearest else 0.0
