"""Settings of a router, and how they are read from a component's configuration (keys with `_`).

The keys are the original's where it has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.message.errors import UserError

from .approx import TTL
from .cost import Weights, weights_of
from .policies import mode_of, policy_class


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How to choose. `overlap_weight`: the original's `--kv-overlap-score-weight`. `ttl`: seconds, without events.

    A worker is busy, and gets nothing, above `busy_blocks` (share of its KV blocks in use) or `busy_prefill` (prompt
    tokens still to be computed there). When all are busy up to `queue_size` requests wait for one; more are refused.
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

    @property
    def needs_events(self) -> bool:
        """Whether the events of workers are used at all."""
        busy = self.busy_blocks is not None or self.busy_prefill is not None
        return busy or self.needs_blocks or self._any("needs_load")

    @property
    def needs_blocks(self) -> bool:
        """Whether prompts must come with the hashes of their blocks."""
        return self._any("needs_blocks")

    def _any(self, need: str) -> bool:
        return any(getattr(policy_class(mode), need) for mode in (self.mode, self.shadow_mode) if mode)


def settings_of(config: Mapping[str, Any]) -> RouterSettings:
    """Read `router_mode`, `router_cost`, `kv_overlap_score_weight`, `router_temperature`, `use_kv_events`,
    `router_ttl_secs`, `shadow_router_mode`, `active_decode_blocks_threshold`, `active_prefill_tokens_threshold` and
    `router_queue_size`. Raises UserError that names the key.
    """
    shadow = config.get("shadow_router_mode")
    events = config.get("use_kv_events", True)
    if not isinstance(events, bool):
        raise UserError(f"use_kv_events is {events!r}", "give true or false")
    return RouterSettings(
        mode=mode_of(str(config.get("router_mode") or config.get("router") or "round-robin")),
        weights=weights_of(config.get("router_cost")),
        overlap_weight=_number(config, "kv_overlap_score_weight", 1.0),
        temperature=_number(config, "router_temperature", 0.0),
        kv_events=events,
        ttl=_number(config, "router_ttl_secs", TTL),
        shadow_mode=mode_of(str(shadow)) if shadow else None,
        busy_blocks=_threshold(config, "active_decode_blocks_threshold", 1.0),
        busy_prefill=_threshold(config, "active_prefill_tokens_threshold", float("inf")),
        queue_size=int(_number(config, "router_queue_size", 0)),
    )


def _threshold(config: Mapping[str, Any], key: str, highest: float) -> float | None:
    if config.get(key) is None:
        return None
    value = _number(config, key, 0.0)
    if value > highest:
        raise UserError(f"{key} is {value:g}", f"give a number from 0 to {highest:g}")
    return value


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UserError(f"{key} is {value!r}", "give a number from 0 up")
    return float(value)
