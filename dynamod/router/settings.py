"""Router settings from a component's configuration (keys with `_`), by the original's names where it has them."""

from collections.abc import Mapping
from typing import Any

from dynamod.message.errors import UserError

from .approx import TTL
from .cost import weights_of
from .policy import RouterMode, mode_of
from .router import RouterSettings


def settings_of(config: Mapping[str, Any]) -> RouterSettings:
    """Read `router_mode`, `router_cost`, `kv_overlap_score_weight`, `router_temperature`, `use_kv_events`,
    `router_ttl_secs`, `shadow_router_mode`, `active_decode_blocks_threshold`, `active_prefill_tokens_threshold` and
    `router_queue_size`. Raises UserError that names the key.
    """
    shadow: RouterMode | None = None
    if config.get("shadow_router_mode"):
        shadow = mode_of(str(config["shadow_router_mode"]))
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
        shadow_mode=shadow,
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
