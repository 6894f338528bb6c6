"""Names of NVIDIA Dynamo's metrics: those of a frontend that has answered are those in the list of the manual."""

import re
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import dynamod
from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker
from dynamod.extension.installed import enabled
from dynamod.ingress.dispatcher import RouterRows
from dynamod.router.router import RouterSettings
from dynamod.runtime.statistics import families_of

PREFIX = "dynamo_frontend_"
OF_FEATURES = {"prefill": "model_remote_prefill", "tiers": "model_peer_fetch"}
"""How names begin that are there with a feature."""
SOMETIMES = ("key_", "batch_", "batches_", "tagged_", "audit_", "request_trace_", "traces_")
"""How names begin that need a file of keys, a folder of batches, a request with tags, an audit log or a trace."""
PAGE = Path(dynamod.__file__).parents[1] / "docs/reference/metrics.md"


def listed() -> set[str]:
    """Names of the page for frontends and routers, as families have them; without those of keys and batches."""
    text = PAGE.read_text().split("## Frontend\n")[1].split("\n## Worker")[0]
    names = re.findall(rf"^\| `{PREFIX}(\w+)` \|", text, re.MULTILINE)
    return {name.removesuffix("_total") for name in names if not name.startswith(SOMETIMES)}


def quick(options: EngineOptions, spawn: Spawn) -> Mocker:
    arguments = {"speedup_ratio": 0, "num_gpu_blocks": 64}
    return Mocker(EngineOptions(options.name, options.path, arguments=arguments), spawn)


async def families(house: Any, url: str, session: aiohttp.ClientSession) -> dict[str, Metric]:
    async with session.get(f"{url}/metrics") as answer:
        found = list(text_string_to_metric_families(await answer.text()))
    found += families_of("p", await house.ref.ask(RouterRows(PREFIX.rstrip("_")), timeout=1))
    return {one.name.removeprefix(PREFIX): one for one in found if one.name.startswith(PREFIX)}


def value(family: Metric, suffix: str = "", **labels: str) -> float:
    name = family.name + suffix
    fits = [one for one in family.samples if one.name == name and labels.items() <= one.labels.items()]
    return float(sum(one.value for one in fits))


async def test_the_list_of_names(house: Any, serve: Any, until: Any) -> None:
    await house.start(routing=RouterSettings(mode="kv"))
    member = await house.worker(quick)
    await until(lambda: "sample" in house.backend.models())
    url = await serve()
    body = {"messages": [{"role": "user", "content": "tell me again " * 20}], "max_tokens": 4}
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
        async with session.post(f"{url}/v1/completions", json={"prompt": [5, 6, 7]}) as answer:
            assert answer.status == 200, await answer.text()
        found = await families(house, url, session)
        while not value(found["event_loop_delay_seconds"], "_count"):  # looked at twice a second
            found = await families(house, url, session)
    assert {name for name, one in found.items() if one.type == "unknown"} == set()
    conditional = {"model_local_prefill"}
    on = {one.name for one in enabled()}
    off = {name for name in listed() for feature, start in OF_FEATURES.items() if feature not in on and start in name}
    assert set(found) == listed() - conditional - off
    assert value(found["tokenize_seconds"], "_count") == 2, "ids are not tokenised"
    assert value(found["template_seconds"], "_count") == 2, "completions have no template"
    latency = found["tokenizer_latency_ms"]
    assert value(latency, "_count", operation="tokenize") == 2
    assert value(latency, "_sum") == 1000 * value(found["tokenize_seconds"], "_sum") > 0
    for stage in ("preprocess", "route"):
        assert value(found["stage_duration_seconds"], "_count", stage=stage) == 3
        assert value(found["stage_requests"], stage=stage) == 0
    hits = found["kv_hit_rate"]
    assert value(hits, "_count") == 2, "three ids are no block"
    assert 0 < value(hits, "_sum") <= 1, "the second prompt was there"
    assert value(found["cached_tokens"], "_count") == 3
    assert value(found["cached_tokens"], "_sum") > 0
    assert value(found["model_ready"]) == 1
    assert value(found["model_total_kv_blocks"]) == 64
    card = member.engine.card()
    assert value(found["model_context_length"]) == card.context_length
    assert value(found["model_kv_cache_block_size"]) == card.kv_cache_block_size
