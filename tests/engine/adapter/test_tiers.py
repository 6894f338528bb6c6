"""Our settings of tiers as arguments of vLLM and SGLang, what these cannot have, and what they have counted."""

from typing import Any

import pytest

from dynamod.engine.adapter.blocks import Held
from dynamod.engine.adapter.tiers import HostTier, split
from dynamod.engine.names import check_arguments
from dynamod.engine.sglang import arguments as sglang_arguments
from dynamod.engine.sglang import tiers as sglang
from dynamod.engine.vllm import arguments as vllm_arguments
from dynamod.engine.vllm import tiers as vllm
from dynamod.kvcache.tier_settings import TierSettings
from dynamod.message.errors import UserError

TIER = TierSettings(kv_host_gb=2.0)


def test_our_settings_are_taken_out_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"kv-host-gb": 0.5, "kv_offload_after": 1, "dtype": "auto", "argv": ["--x"]}
    tiers, rest = split(vllm_arguments.NAMES, given)
    assert (tiers.kv_host_gb, tiers.kv_offload_after, rest) == (0.5, 1, {"dtype": "auto", "argv": ["--x"]})
    monkeypatch.setenv("DYN_KVBM_CPU_CACHE_GB", "0.25")
    assert split(vllm_arguments.NAMES, {})[0].kv_host_gb == 0.25
    assert split(vllm_arguments.NAMES, given)[0].kv_host_gb == 0.5


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kv_host_gb": -1}, "argument kv_host_gb: expected"),
        ({"kv_host_gb": 900_000}, "argument kv_host_gb: 900000 GB, but"),
        ({"kv_disk_gb": 1}, "argument kv_disk_gb: .* does not bound its files"),
        ({"kv_disk_path": "/x"}, "argument kv_disk_path: .* does not bound its files"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(engine: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"{engine} {says}"):
        check_arguments(engine, given, None)
    check_arguments(engine, {"kv_host_gb": 0.1}, None)


def test_a_tier_of_files_by_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_KVBM_DISK_CACHE_GB", "4")
    with pytest.raises(UserError, match="argument kv_disk_gb") as caught:
        split(sglang_arguments.NAMES, {})
    assert "DYN_KVBM_DISK_CACHE_GB" in caught.value.hint


def test_vllm_gets_its_connector() -> None:
    made = vllm.with_tier({"dtype": "auto"}, TIER, "aggregated")
    extra = {"cpu_bytes_to_use": 2 * 10**9, "store_threshold": 2, "self_describing_kv_events": True}
    assert made == {
        "dtype": "auto",
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        },
    }
    spec = {"spec_module_path": "dynamod.engine.vllm.host_offload", "spec_name": "HostOffloadSpec"}
    made = vllm.with_tier({}, TIER, "aggregated", cpu=True)["kv_transfer_config"]
    assert made["kv_connector_extra_config"] == {**extra, **spec}
    plain = {"kv_offloading_size": 4}
    assert vllm.with_tier(plain, TierSettings(), "aggregated") == plain, "vLLM's own"


@pytest.mark.parametrize(
    ("values", "mode", "cpu", "says"),
    [
        (
            {"kv_transfer_config": {"kv_connector": "X"}},
            "aggregated",
            False,
            "kv_host_gb: given together with kv_tr",
        ),
        ({"kv_offloading_size": 4}, "aggregated", False, "kv_host_gb: given together with kv_offloading_size"),
        ({"kv_offloading_size": 4}, "aggregated", True, "kv_offloading_size: vLLM's own tier needs a GPU"),
        ({}, "prefill", False, "kv_host_gb: a prefill worker moves blocks by NIXL"),
        ({"enable_prefix_caching": False}, "aggregated", False, "enable_prefix_caching: off, but tiers"),
    ],
)
def test_what_vllm_cannot_have(values: dict[str, Any], mode: Any, cpu: bool, says: str) -> None:
    with pytest.raises(UserError, match=f"vllm argument {says}"):
        vllm.with_tier(values, TIER, mode, cpu=cpu)


def test_sglang_gets_hicache() -> None:
    made = sglang.with_tier({"tp_size": 2}, TierSettings(kv_host_gb=8.0), "prefill")
    policy = {"enable_hierarchical_cache": True, "hicache_write_policy": "write_through_selective"}
    assert made == {"tp_size": 2, "hicache_size": 4, **policy}
    by_data = {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}
    made = sglang.with_tier(by_data, TierSettings(kv_host_gb=8.0, kv_offload_after=1), "aggregated")
    assert (made["hicache_size"], made["hicache_write_policy"]) == (4, "write_through")
    plain = {"enable_hierarchical_cache": True}
    assert sglang.with_tier(plain, TierSettings(), "aggregated") == plain, "SGLang's own"


@pytest.mark.parametrize(
    ("values", "fields", "mode", "cpu", "says"),
    [
        ({}, {}, "aggregated", True, "kv_host_gb: SGLang's tier needs a GPU"),
        (
            {"enable_hierarchical_cache": True},
            {"kv_host_gb": 0.0},
            "aggregated",
            True,
            "enable_hierarchical_cache: SGL",
        ),
        ({"hicache_ratio": 2.0}, {}, "aggregated", False, "kv_host_gb: given together with hicache_ratio"),
        ({}, {}, "decode", False, "kv_host_gb: a decode worker"),
        ({"disable_radix_cache": True}, {}, "aggregated", False, "disable_radix_cache: off, but tiers"),
        ({}, {"kv_host_gb": 1.5}, "aggregated", False, "kv_host_gb: 1.5, but SGLang takes whole GB"),
        ({"tp_size": 4}, {}, "aggregated", False, "kv_host_gb: 2, but SGLang takes whole GB for each of 4 ranks"),
        ({}, {"kv_offload_after": 3}, "aggregated", False, "kv_offload_after: 3, but SGLang knows 1 and 2"),
    ],
)
def test_what_sglang_cannot_have(
    values: dict[str, Any], fields: dict[str, Any], mode: Any, cpu: bool, says: str
) -> None:
    with pytest.raises(UserError, match=f"sglang argument {says}"):
        sglang.with_tier(values, TierSettings(**{"kv_host_gb": 2.0, **fields}), mode, cpu=cpu)


def test_what_vllm_copies_is_counted() -> None:
    tier, held = HostTier(), Held()
    for name in range(4):
        held.add(0, (0, name), name)
    held.remove(0, [(0, 3)])
    for _ in range(2):
        counted = {"vllm:kv_offload_store_bytes": {(): 200}, "vllm:kv_offload_load_bytes": {(): 100}}
        vllm.record(tier, {"types": {}, "data": {**counted, "vllm:kv_offload_load_time": {(): 0.25}}})
    vllm.record(tier, {})
    found = tier.statistics(held)
    assert (found.blocks, found.bytes, found.stored, found.dropped) == (3, 300, 4, 1)
    assert (found.loaded, found.load_milliseconds) == (2, 500)
    assert tier.load_seconds_of(held) == 0.25
    assert HostTier().statistics(Held()).bytes == 0
    assert HostTier().load_seconds_of(held) == 0.0
