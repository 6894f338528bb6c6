"""What is known of a graph with prefill workers before a process starts."""

from dataclasses import replace

import pytest

from dynamod.cli.flags import parse
from dynamod.cli.preflight import check
from dynamod.cli.run import build
from dynamod.engine.entry import HandoffEntry
from dynamod.engine.names import ENGINES
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError


def graph(*words: str) -> Graph:
    return build(parse(["in=http", *words]))


@pytest.mark.parametrize(
    ("mine", "other", "says"),
    [
        ({}, {}, ""),
        (
            {"engine_args": {"block_size": 32}},
            {},
            r"Worker.engine_args.block_size is 32, and PrefillWorker.kv_cache_block_size is 64: ",
        ),
        (
            {},
            {"kv_cache_block_size": 16},
            r"Worker.kv_cache_block_size is 64, and PrefillWorker.kv_cache_block_size is 16: ",
        ),
        ({"kv_cache_block_size": 16}, {"engine_args": {"block-size": 16}}, ""),
        ({"model": "sample.gguf"}, {}, r"Worker.model is sample.gguf, and PrefillWorker.model is sample: no prompt"),
        ({"served_model_name": "a"}, {"served_model_name": "b"}, ""),
        ({"disaggregation_mode": "prefill", "kv_cache_block_size": 16}, {}, ""),
    ],
)
def test_blocks_of_prefill_workers_fit(mine: dict[str, object], other: dict[str, object], says: str) -> None:
    whole = graph("out=mocker", "sample")
    worker = whole.services["Worker"]
    prefill = replace(
        worker, name="PrefillWorker", component_type="prefill", config={**worker.config, "model": "sample", **other}
    )
    worker = replace(worker, config={**worker.config, "model": "sample", **mine})
    both = replace(whole, services={**whole.services, "Worker": worker, "PrefillWorker": prefill})
    if says:
        with pytest.raises(UserError, match=says):
            check(both, {})
    else:
        check(both, {})


@pytest.mark.parametrize(
    ("engine", "mine", "says"),
    [
        (
            "vllm",
            {},
            "PrefillWorker would compute no prompt: `Worker.disaggregation_mode` is aggregated, and vllm takes",
        ),
        ("vllm", {"disaggregation_mode": "decode"}, ""),
        ("vllm", {"served_model_name": "other"}, ""),
        ("vllm", {"engine": "echo_core"}, "`Worker.engine` is echo_core, and `PrefillWorker.engine` is vllm"),
        ("sglang", {}, "sglang takes prompts of others only as decode"),
        ("mocker", {}, ""),
    ],
)
def test_a_prefill_pool_has_a_worker_that_takes_from_it(
    monkeypatch: pytest.MonkeyPatch, engine: str, mine: dict[str, object], says: str
) -> None:
    for one in ("vllm", "sglang"):
        handoff = HandoffEntry("json", only_decode=True)
        monkeypatch.setitem(ENGINES, one, ENGINES[one]._replace(needs="json", handoff=handoff))
    whole = graph(f"out={engine}", "sample")
    worker = whole.services["Worker"]
    config = {**worker.config, "model": "sample", "served_model_name": "one"}
    prefill = replace(worker, name="PrefillWorker", component_type="prefill", config=config)
    worker = replace(worker, config={**config, **mine})
    both = replace(whole, services={**whole.services, "Worker": worker, "PrefillWorker": prefill})
    if says:
        with pytest.raises(UserError, match=says) as raised:
            check(both, {})
        assert "or leave out PrefillWorker" in raised.value.hint
    else:
        check(both, {})
    check(replace(both, services={name: spec for name, spec in both.services.items() if name != "Worker"}), {})


@pytest.mark.parametrize(("key", "kind"), [({}, "prefill"), ({"disaggregation_mode": "decode"}, "worker")])
def test_a_role_of_a_feature_that_is_off(monkeypatch: pytest.MonkeyPatch, key: dict[str, str], kind: str) -> None:
    whole = graph("out=mocker", "sample")
    worker = whole.services["Worker"]
    other = replace(worker, name="Other", component_type=kind, config={**worker.config, "model": "sample", **key})
    both = replace(whole, services={**whole.services, "Other": other})
    monkeypatch.setenv("DYNAMOD_FEATURES", "-prefill")
    role = key.get("disaggregation_mode", "prefill")
    with pytest.raises(UserError, match=f"Other: the role '{role}' belongs to the feature 'prefill', which is off"):
        check(both, {})
    check(replace(both, services={name: one for name, one in both.services.items() if name != "Other"}), {})
