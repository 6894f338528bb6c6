"""The state that schedulers share: waiting sequences, running sequences, their pool. Pure: no clock, no tasks."""

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from dynamod.kvcache.pool import BlockPool

SequenceT = TypeVar("SequenceT")


class BatchScheduler(ABC, Generic[SequenceT]):
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

    @abstractmethod
    def lengths(self) -> tuple[list[int], list[int]]:
        """Tokens of each prompt that waits, and of each sequence that gave way to others."""

    @property
    @abstractmethod
    def begun(self) -> int:
        """Tokens that are still to be computed, of prompts that have begun."""

    @abstractmethod
    def free(self, sequence: SequenceT) -> None:
        """A sequence that ran gives its blocks back: it has ended, its reader has left, or it gives way."""

    def remove(self, sequence: SequenceT) -> None:
        """It has ended, or its reader has left. Does nothing the second time."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.free(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def preempt(self, sequence: SequenceT) -> None:
        """A running sequence gives way: back to the head of the queue."""
        self.running.remove(sequence)
        self.free(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def admitted(self, tokens: int, cached: int) -> None:
        """The oldest waiting sequence runs now; so many of its tokens were `cached`."""
        self.running.append(self.waiting.popleft())
        self.prompt_tokens += tokens
        self.cached_tokens += cached
