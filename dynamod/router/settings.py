"""Settings of a router. `ingress.settings` reads them from a config file."""

from dataclasses import dataclass

import msgspec

from .approx import TTL
from .cost import Weights
from .policies import policy_class


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How to choose. `overlap_weight`: NVIDIA Dynamo's `--kv-overlap-score-weight`. `ttl`: seconds, without events.

    A worker is busy, and gets nothing, above `busy_blocks` (share of its KV blocks in use) or `busy_prefill` (prompt
    tokens still to be computed there). When all are busy up to `queue_size` requests wait for one; more are refused.
    Requests wait until a model has had `initial_workers` at once.
    """

    mode: str = "round-robin"
    weights: msgspec.Struct = Weights()
    overlap_weight: float = 1.0
    temperature: float = 0.0
    kv_events: bool = True
    ttl: float = TTL
    shadow_mode: str | None = None
    busy_blocks: float | None = None
    busy_prefill: float | None = None
    queue_size: int = 0
    initial_workers: int = 1

    @property
    def needs_events(self) -> bool:
        """Whether the events of workers are used at all."""
        busy = self.busy_blocks is not None or self.busy_prefill is not None
        return busy or self.scores or self._any("needs_load")

    @property
    def scores(self) -> bool:
        """Whether a policy asks what requests cost: then prompts must come with the hashes of their blocks."""
        return self._any("needs_blocks")

    def _any(self, need: str) -> bool:
        return any(getattr(policy_class(mode), need) for mode in (self.mode, self.shadow_mode) if mode)
