"""What is known of a graph with models on demand before a process of it starts."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from dynamod.cli.flags import parse
from dynamod.cli.preflight import check
from dynamod.cli.run import build
from dynamod.graph.graph import Graph
from dynamod.graph.load import load_graph
from dynamod.kvcache import tier_settings
from dynamod.kvcache.tier_settings import GB
from dynamod.message.errors import UserError
from tests.adapters import write_adapter


def graph(*words: str) -> Graph:
    return build(parse(["in=http", *words]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {a: {engine: echo_full, ttl: -1}}", "m.yaml:1: Processor: models.a.ttl is -1"),
        ("models: {a: {engine: echo_full, tl: 1}}", "models.a.tl: unknown key; did you mean 'ttl'?"),
        ("models: {a: {engine: echo_full}}\nbudget: {models: 0}", "budget.models is 0"),
        ("models: {a: {engine: echo_full}}\nbudget: {gpus: 1}", "budget.gpus: unknown key"),
        ("models: {a: {engine: echo_full, aliases: [b]}, b: {engine: echo_full}}", "'b' is the name of a model"),
    ],
)
def test_mistakes_are_refused_with_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_graph(None, "m.yaml", working_dir=tmp_path)
    assert said in caught.value.line()


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")
def test_adapters_of_models_on_demand_have_names_of_their_own(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "one.gguf", 1)
    whole = graph("out=llamacpp", "sample.gguf", "--max-models", "1", "--lora", f"x={adapter}")
    check(whole, {})
    worker, processor = whole.services["sample"], whole.services["Processor"]
    other = replace(worker, name="other", config={**worker.config, "served_model_name": "other"})
    entries = {"sample": {"component": "sample"}, "other": {"component": "other", "aliases": ["y"]}}
    both = {**whole.services, "other": other, "Processor": replace(processor, config={"models": entries})}
    with pytest.raises(UserError, match=r"models.other: lora: 'x' is an adapter of the model 'sample'"):
        check(replace(whole, services=both), {})
    both["other"] = replace(other, config={**other.config, "lora": [f"y={adapter}"]})
    with pytest.raises(UserError, match=r"models.other: lora: 'y' is a name of the model 'other'"):
        check(replace(whole, services=both), {})


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")
def test_models_on_demand_have_room_as_far_as_they_are_loaded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_settings, "free_memory", lambda: 10 * GB)
    whole = graph("out=llamacpp", "sample.gguf", "--max-models", "1")
    worker, processor = whole.services["sample"], whole.services["Processor"]
    worker = replace(worker, config={**worker.config, "engine_args": {"kv_host_gb": 6}})
    other = replace(worker, name="other", config={**worker.config, "served_model_name": "other"})
    models = {"sample": {"component": "sample"}, "other": {"component": "other"}}

    def loading(most: int) -> Graph:
        config = {"models": models, "budget": {"models": most}}
        return replace(
            whole,
            services={
                **whole.services,
                "sample": worker,
                "other": other,
                "Processor": replace(processor, config=config),
            },
        )

    check(loading(1), {})
    with pytest.raises(UserError, match=r"sample.kv_host_gb and other.kv_host_gb: 6 GB and 6 GB, but"):
        check(loading(2), {})
