"""What a planner sees of a pool at a tick."""

from typing import NamedTuple

import msgspec


class StepSample(NamedTuple):
    """A step of an engine: tokens of prompts computed, KV tokens of sequences that got a token, seconds."""

    prefill: int
    context: int
    seconds: float


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a ready worker has to do, in tokens. `steps`: some of those since the last tick.

    `requests`: that are open there. `queued_prompts`: prompts of which nothing is computed yet. `queued_prefill`: their
    tokens. `running_prefill`: what is left of prompts that have begun. `context`: KV cache in use, of `capacity`;
    both 0 where they are unknown.
    """

    requests: int = 0
    queued_prompts: int = 0
    queued_prefill: int = 0
    running_prefill: int = 0
    context: int = 0
    capacity: int = 0
    steps: tuple[StepSample, ...] = ()


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at a tick. `now`: seconds of a monotonic clock. `starting`: workers that are not ready yet.

    `arrived`: prompt tokens that had to be computed, of each request since the last tick. `wanted`: requests wait that
    no worker of the pool has, or other pools that need this one have requests.
    """

    now: float
    ready: tuple[WorkerLoad, ...]
    starting: int = 0
    arrived: tuple[int, ...] = ()
    wanted: bool = False

    @property
    def expected(self) -> int:
        """Workers that are there, or will be."""
        return len(self.ready) + self.starting

    @property
    def queued(self) -> int:
        """Prompt tokens that are still to be computed."""
        return sum(one.queued_prefill + one.running_prefill for one in self.ready)

    @property
    def busy(self) -> bool:
        """Whether a request needs the pool now."""
        return self.wanted or bool(self.arrived) or any(one.requests for one in self.ready)

    @property
    def context(self) -> int:
        """KV tokens in use."""
        return sum(one.context for one in self.ready)
