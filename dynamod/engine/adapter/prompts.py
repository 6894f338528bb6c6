"""How fast an engine computes prompts, by its reports of computed prompts."""

from dataclasses import dataclass

LEAST = 64
"""Tokens: with less of them a step's own time is most of what is measured."""
KEPT = 0.9
"""Of what prompts before have taken, at each new one."""


@dataclass
class PromptRate:
    """Tokens that were computed, and the seconds of that, those of long ago forgotten."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, prompt: int, cached: int, seconds: float) -> None:
        """A prompt with `cached` of its tokens from a cache; where that is most of it, loading is what took time."""
        computed = prompt - cached
        if computed >= LEAST and computed >= cached and seconds > 0:
            self.tokens = KEPT * self.tokens + computed
            self.seconds = KEPT * self.seconds + seconds

    def takes(self, tokens: int) -> float:
        """Seconds to compute so many; 0 where that is not known."""
        return tokens * self.seconds / self.tokens if self.tokens else 0.0
