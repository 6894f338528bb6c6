"""The state that schedulers share: who waits, who runs, over which pool. Pure: no clock, no tasks."""

from collections import deque
from typing import Generic, TypeVar

from dynamod.kvcache.pool import BlockPool

SequenceT = TypeVar("SequenceT")


class BatchScheduler(Generic[SequenceT]):
    """Waiting and running sequences, both oldest first. `cached_tokens` of `prompt_tokens` were not computed again."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.waiting: deque[SequenceT] = deque()
        self.running: list[SequenceT] = []
        self.prompt_tokens = self.cached_tokens = self.preemptions = 0

    def add(self, sequence: SequenceT) -> None:
        """Queue a sequence. Its tokens, and those still to come, must fit the pool."""
        self.waiting.append(sequence)

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not self.running and not self.waiting
