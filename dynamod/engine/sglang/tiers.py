"""KV blocks that fell out of SGLang's device, in memory of the host: by SGLang's own HiCache."""

import math
from collections.abc import Mapping
from typing import Any

from dynamod.kvcache.tier_settings import NO_CACHE, TierSettings
from dynamod.message.discovery import DisaggregationMode

from ..adapter.tiers import given_once, refused
from .arguments import NAMES

_POLICIES = {1: "write_through", 2: "write_through_selective"}
"""By `kv_offload_after`; SGLang counts no further."""


def with_tier(
    values: Mapping[str, Any], tiers: TierSettings, mode: DisaggregationMode, *, cpu: bool = False
) -> dict[str, Any]:
    """`values` with HiCache for `kv_host_gb`, if that is set: the total of all ranks.

    Raises UserError for what SGLang cannot have, its own setting on a CPU too.
    """
    if cpu and (tiers.kv_host_gb or values.get("enable_hierarchical_cache")):
        name = "kv_host_gb" if tiers.kv_host_gb else "enable_hierarchical_cache"
        raise refused(NAMES, name, "SGLang's tier needs a GPU", "leave it out on a CPU")
    if not tiers.kv_host_gb:
        return dict(values)
    given_once(NAMES, values, ("enable_hierarchical_cache", "hicache_size", "hicache_ratio", "hicache_write_policy"))
    if mode == "decode":
        raise refused(NAMES, "kv_host_gb", "a decode worker of SGLang keeps no prompts", "leave it out")
    if values.get("disable_radix_cache"):
        raise refused(NAMES, "disable_radix_cache", NO_CACHE, "")
    ranks = math.prod(int(values.get(name) or 1) for name in _sizes(values))
    share = tiers.kv_host_gb / ranks
    if not share.is_integer():
        per_rank = f" for each of {ranks} ranks" if ranks > 1 else ""
        raise refused(
            NAMES, "kv_host_gb", f"{tiers.kv_host_gb:g}, but SGLang takes whole GB{per_rank}", "for example 8"
        )
    if (policy := _POLICIES.get(tiers.kv_offload_after)) is None:
        raise refused(
            NAMES, "kv_offload_after", f"{tiers.kv_offload_after}, but SGLang knows 1 and 2", "give one of them"
        )
    own = {"enable_hierarchical_cache": True, "hicache_size": int(share), "hicache_write_policy": policy}
    return {**values, **own}


def _sizes(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments whose product is the number of ranks with a pool of their own: with attention by data those of `tp`."""
    return ("tp_size", "pp_size") if values.get("enable_dp_attention") else NAMES.sizes
