"""What an engine of another project reports of itself, and what is counted of its answers."""

from dataclasses import dataclass, field

from .prompts import PromptRate


@dataclass(slots=True)
class EngineCounts:
    """`queued`: requests that wait in the engine. `queried`, `hits`: tokens or blocks, for the prefix cache.

    `tokens`: of answers. `steps`, `preemptions`: of the engine.
    """

    total_blocks: int = 0
    used_blocks: int = 0
    queued: int = 0
    queried: int = 0
    hits: int = 0
    tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_rate: PromptRate = field(default_factory=PromptRate)
