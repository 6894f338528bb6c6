"""A DynamoGraphDeployment of both versions as a graph; what is wrong or left out is named with its path."""

import contextlib
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.kubernetes.deployment import VERSIONS
from dynamod.graph.graph import Graph
from dynamod.graph.load import load_graph
from dynamod.message.errors import UserError

WORKER = ["python3", "-m", "dynamo.mocker"]
ARGS = ["--model-path", "sample", "--model-name", "m"]


def beta(**components: dict[str, Any]) -> dict[str, Any]:
    """A graph of components, each with its type, container and more."""

    def one(name: str, given: dict[str, Any]) -> dict[str, Any]:
        main = {"name": "main", "image": "x", **given.pop("main", {})}
        containers = [{"name": "sidecar", "image": "y"}, main] if given.pop("sidecar", False) else [main]
        return {"name": name, "podTemplate": {"spec": {"containers": containers}}, **given}

    found = [one(name, dict(given)) for name, given in components.items()]
    return resource("v1beta1", {"components": found})


def resource(version: str, spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"nvidia.com/{version}",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "mine", "labels": {"a": "b"}},
        "spec": spec,
    }


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def loaded(data: Any, *overrides: str, target: str | None = None) -> Graph:
        (tmp_path / "dgd.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        return load_graph(target, "dgd.yaml", overrides=overrides)

    return loaded


FRONT = {"type": "frontend"}


def test_a_graph_with_prefill_workers(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    graph = load(
        beta(
            Web={"type": "frontend", "main": {"env": [{"name": "DYN_ROUTER_MODE", "value": "kv"}]}},
            answers={
                "type": "decode",
                "replicas": 2,
                "main": {
                    "command": WORKER,
                    "args": [*ARGS, "--speedup-ratio", "2.0"],
                    "workingDir": "/workspace",
                    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}},
                    "env": [
                        {"name": "A", "value": "b"},
                        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ],
                    "envFrom": [{"secretRef": {"name": "hf"}}],
                },
            },
            prompts={"type": "prefill", "sidecar": True, "main": {"command": [*WORKER, *ARGS]}},
            Planner={"type": "planner", "main": {"command": ["python3", "-m", "dynamo.planner"]}},
        )
    )
    assert graph.root == "Web"
    assert {name: spec.workers for name, spec in graph.services.items()} == {
        "Web": 1,
        "Processor": 1,
        "answers": 2,
        "prompts": 1,
    }
    decode, prompts = graph.services["answers"], graph.services["prompts"]
    assert (decode.config["engine"], decode.config["model"], decode.config["served_model_name"]) == (
        "mocker",
        "sample",
        "m",
    )
    assert decode.config["engine_args"] == {"speedup_ratio": 2.0}
    assert (decode.resources["gpu"], decode.envs) == (1, {"A": "b"})
    assert (decode.component_type, prompts.component_type) == ("worker", "prefill")
    processor = graph.services["Processor"].config
    assert (processor["router_mode"], processor["remote_prefill"]) == ("kv", True)
    components = "dgd.yaml: spec.components"
    main = "podTemplate.spec.containers"
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(
        [
            f"{components}.0.{main}.0.image: is of pods, and has no effect here",
            f"{components}.1.{main}.0.image: is of pods, and has no effect here",
            f"{components}.1.{main}.0.resources.limits.memory: is of pods, and has no effect here",
            f"{components}.1.{main}.0.env.1: T comes from the cluster; set the variable in the environment of dynamo "
            "serve",
            f"{components}.1.{main}.0.envFrom.0: comes from a secret of the cluster; set its variables in the "
            "environment of dynamo serve",
            f"{components}.2.{main}.0.image: is of pods, and has no effect here",
            f"{components}.2.{main}.1.image: is of pods, and has no effect here",
            f"{components}.3.{main}.0.image: is of pods, and has no effect here",
            f"{components}.3: a planner needs a section of its own here; see docs/how-to/autoscaling",
        ]
    )


def test_flags_and_variables_without_an_effect_are_said(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    args = [*ARGS, "--planner-profile-data", "/workspace/x"]
    graph = load(
        beta(
            Front={"type": "frontend", "main": {"env": [{"name": "DYN_DISCOVERY_BACKEND", "value": "kubernetes"}]}},
            W={"main": {"command": WORKER, "args": args}},
        )
    )
    assert graph.services["W"].config["model"] == "sample"
    said = [line for line in capsys.readouterr().err.splitlines() if ".image: " not in line]
    assert len(said) == 2, said
    main = "podTemplate.spec.containers.0"
    for place, what in enumerate(["DYN_DISCOVERY_BACKEND", "--planner-profile-data"]):
        assert said[place].startswith(f"dgd.yaml: spec.components.{place}.{main}: {what} has no effect here: ")


def test_the_older_version(load: Any) -> None:
    main = {"image": "x", "command": ["/bin/sh", "-c"], "args": [f"python3 -m dynamo.mocker {' '.join(ARGS)}"]}
    spec = {
        "envs": [{"name": "ALL", "value": "1"}],
        "services": {
            "Frontend": {"componentType": "frontend", "extraPodSpec": {"mainContainer": {"image": "x"}}},
            "W": {
                "componentType": "worker",
                "subComponentType": "decode",
                "dynamoNamespace": "x",
                "replicas": 0,
                "envs": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"gpu": "2"}, "requests": {"gpu": "2"}},
                "extraPodSpec": {"mainContainer": main},
            },
        },
    }
    graph = load(resource("v1alpha1", spec), "--W.model=sample", "--W.ServiceArgs.workers=3", "--Frontend.port=8123")
    worker = graph.services["W"]
    assert (worker.workers, worker.resources["gpu"], worker.envs) == (3, 2, {"ALL": "1", "A": "b"})
    assert worker.config["served_model_name"] == "m"
    assert graph.services["Frontend"].config["port"] == 8123


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (resource("v2", {}), "apiVersion: unknown version 'nvidia.com/v2'"),
        ({**resource("v1beta1", {}), "kind": "Pod"}, "kind: 'Pod' is no graph"),
        ({"spec": {}}, "kind: None is no graph"),
        (resource("v1beta1", {}), "spec.components: a graph needs at least one component"),
        (resource("v1alpha1", {"services": []}), "spec.services: expected a mapping, got a list"),
        (beta(W={"type": "worker", "main": {"command": WORKER}}), "spec: 0 frontends"),
        (beta(A=FRONT, B=FRONT), "spec: 2 frontends"),
        (beta(A=FRONT, a=FRONT), "spec.components.1.name: there is another component 'a'"),
        (beta(A={"type": "fronted"}), "spec.components.0.type: unknown type 'fronted'"),
        (beta(A={**FRONT, "replicas": "x"}), "spec.components.0.replicas: expected a number, got a string"),
        (beta(A={**FRONT, "replicas": -1}), "spec.components.0.replicas: -1 is too small"),
        (beta(A=FRONT, Processor={"main": {"command": WORKER}}), "spec: a component is called Processor"),
        (beta(A=FRONT, W={"main": {}}), "spec.components.1.podTemplate.spec.containers.0.command: there is no command"),
        (beta(A=FRONT, W={"main": {"command": ["vllm", "serve"]}}), "command: 'vllm serve' cannot be run here"),
        (beta(A=FRONT, W={"main": {"command": ["python3", "-m", "http.server"]}}), "'http.server' cannot be run here"),
        (beta(A=FRONT, W={"main": {"command": WORKER, "args": ["--modell"]}}), "args: unknown flag --modell"),
        (beta(A=FRONT, W={"main": {"resources": {"limits": {"nvidia.com/gpu": "x"}}}}), "expected a number of devices"),
        (beta(A=FRONT, W={"main": {"env": [{"value": "x"}]}}), "env.0.name: a variable needs a name"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(load: Any, data: Any, said: str) -> None:
    with pytest.raises(UserError) as raised:
        load(data)
    assert str(raised.value).startswith("dgd.yaml")
    assert said in str(raised.value)


def test_a_deployment_is_the_graph(load: Any) -> None:
    with pytest.raises(UserError, match="kind: the deployment is the graph"):
        load(beta(A=FRONT), target="graphs.agg:Frontend")


KEYS = ("components", "services", "name", "type", "replicas", "podTemplate", "spec", "containers", "env", "command")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["main", "frontend", "python3", "-m", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(VERSIONS), values, st.text(string.ascii_letters, max_size=3))
def test_any_value_is_read_or_refused(tmp_path_factory: Any, version: str, spec: Any, name: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "dgd.yaml").write_text(yaml.safe_dump({**resource(version, spec), "metadata": {"name": name}}))
    with contextlib.suppress(UserError):
        load_graph(None, "dgd.yaml", working_dir=folder)
