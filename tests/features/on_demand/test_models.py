"""`models:` at the top of a config."""

from pathlib import Path

import pytest

from dynamod.graph.load import load_graph
from dynamod.message.errors import UserError


def test_each_model_is_a_component_without_processes() -> None:
    graph = load_graph(None, "configs/models.yaml")
    assert graph.target == "graphs.models:Frontend"
    assert graph.root == "Frontend"
    models = [spec for spec in graph.services.values() if spec.component_kind == "worker"]
    assert [spec.name for spec in models] == ["small", "large", "plain", "echo", "words"]
    assert {spec.workers for spec in models} == {0}
    assert {spec.placement for spec in models} == {"own"}
    assert graph.services["plain"].config == {"engine": "mistralrs", "model": "sample", "served_model_name": "plain"}
    assert graph.services["Processor"].config["models"]["large"] == {
        "ttl": "5m",
        "concurrency": 8,
        "component": "large",
    }


def test_names_that_cannot_be_components(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "models:\n  org/Some-7B:Q4: {engine: echo_full}\n  org/Some-7B/Q4: {engine: echo_full}\n"
        "  Processor: {engine: echo_full, worker: {ServiceArgs: {envs: {A: b}}, context_length: 9}, args: {x: 1}}\n"
    )
    graph = load_graph(None, "m.yaml", working_dir=tmp_path, overrides=["--models.Processor.ttl=5"])
    assert list(graph.services) == ["Frontend", "Processor", "org-Some-7B-Q4", "org-Some-7B-Q4-2", "Processor-2"]
    named = graph.services["Processor-2"]
    assert named.config["served_model_name"] == "Processor"
    assert (named.config["context_length"], named.config["engine_args"], named.envs) == (9, {"x": 1}, {"A": "b"})
    assert graph.services["Processor"].config["models"]["Processor"]["ttl"] == 5


def test_with_a_target_and_other_sections(tmp_path: Path) -> None:
    text = "Frontend: {port: 1}\nProcessor: {queue_timeout: 7}\nmodels: {a: {engine: echo_full}}\n"
    (tmp_path / "m.yaml").write_text(text)
    graph = load_graph("graphs.models:Frontend", "m.yaml", working_dir=tmp_path)
    assert graph.services["Frontend"].config["port"] == 1
    assert graph.services["Processor"].config["queue_timeout"] == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: []", "m.yaml:1: models: expected a mapping of names to settings, got a list"),
        ("models: {}", "m.yaml:1: models: expected a mapping"),
        ("models: {a: 1}", "m.yaml:1: models.a: expected a mapping, got an integer"),
        ("models: {a: {engine: echo_full, worker: 1}}", "models.a.worker: expected a mapping, got an integer"),
        ("models: {a: {engine: echo_full, worker: {engine_args: {}}}}", "models.a.worker.engine_args: this key stands"),
        (
            "models: {a: {engine: echo_full, worker: {ServiceArgs: {workers: 2}}}}",
            "models.a.worker.ServiceArgs.workers: a model on demand has one process",
        ),
        (
            "models: {a: {engine: echo_full}}\nFrontend: {ServiceArgs: {workers: 2}}",
            "m.yaml:2: Frontend.ServiceArgs.workers: one process decides",
        ),
        ("models: {a: {engine: echo_full, worker: {modle: 1}}}", "a.modle: unknown key"),
        ("models: {a: {engine: echo_full}}\ngraph: {services: {}}", "m.yaml:2: graph: a config with models needs no"),
        ("models: {a: {engine: echo_full}, a: {engine: echo_full}}", "models.a: written twice"),
    ],
)
def test_mistakes_are_refused_with_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_graph(None, "m.yaml", working_dir=tmp_path)
    assert said in caught.value.line()
