"""KV blocks that fell out of vLLM's device, in memory of the host: by vLLM's own OffloadingConnector."""

from collections.abc import Mapping
from typing import Any

from dynamod.kvcache.tier_settings import GB, NO_CACHE, TierSettings
from dynamod.message.discovery import DisaggregationMode

from ..adapter.tiers import HostTier, given_once, refused
from .arguments import NAMES

CPU_SPEC = "dynamod.engine.vllm.host_offload:HostOffloadSpec"
"""What copies blocks where the engine computes on a CPU: vLLM's own copies from GPUs only."""


def with_tier(
    values: Mapping[str, Any], tiers: TierSettings, mode: DisaggregationMode, *, cpu: bool = False
) -> dict[str, Any]:
    """`values` with the connector for `kv_host_gb`, if that is set: the total of all ranks.

    Raises UserError for what it cannot be combined with, and for vLLM's own setting on a CPU.
    """
    if cpu and values.get("kv_offloading_size"):
        raise refused(NAMES, "kv_offloading_size", "vLLM's own tier needs a GPU", "on a CPU give kv_host_gb")
    if not tiers.kv_host_gb:
        return dict(values)
    given_once(NAMES, values, ("kv_transfer_config", "kv_offloading_size"))
    if mode != "aggregated":
        raise refused(NAMES, "kv_host_gb", f"a {mode} worker moves blocks by NIXL, and has no tier", "leave it out")
    if values.get("enable_prefix_caching") is False:
        raise refused(NAMES, "enable_prefix_caching", NO_CACHE, "")
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": round(tiers.kv_host_gb * GB),
        "store_threshold": tiers.kv_offload_after,
        "self_describing_kv_events": True,  # else no router could know the blocks
    }
    if cpu:
        extra["spec_module_path"], _, extra["spec_name"] = CPU_SPEC.partition(":")
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {**values, "kv_transfer_config": connector}


def record(tier: HostTier, found: Mapping[str, Any]) -> None:
    """Statistics of the connector, since the last ones: values by name, then by labels."""
    counted = found.get("data", {})

    def total(name: str) -> float:
        return float(sum(counted.get(f"vllm:kv_offload_{name}", {}).values()))

    tier.stored_bytes += total("store_bytes")
    tier.loaded_bytes += total("load_bytes")
    tier.load_seconds += total("load_time")
