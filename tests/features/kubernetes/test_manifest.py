"""Graphs as manifests: workloads, replicas, config, and what pods take over of a DynamoGraphDeployment."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamod.features.kubernetes.manifest import short
from dynamod.message.errors import UserError

from .test_deployment import ARGS, FRONT, WORKER, beta, resource

DISAGG = ("graphs.disagg:Frontend", "-f", "configs/disagg.yaml")


def config_of(found: dict[tuple[str, str], Any], name: str) -> Any:
    return yaml.safe_load(found["ConfigMap", name]["data"]["graph.yaml"])


def container(found: dict[tuple[str, str], Any], kind: str, name: str) -> Any:
    (one,) = found[kind, name]["spec"]["template"]["spec"]["containers"]
    return one


def test_components_become_workloads_and_processes_become_pods(printed: Any) -> None:
    found, said = printed(*DISAGG, "--Worker.ServiceArgs.workers=3", "--Worker.ServiceArgs.resources.gpu=2")
    assert {name for kind, name in found if kind == "StatefulSet"} == {
        "disagg-dynamod-worker",
        "disagg-dynamod-prefill-worker",
    }
    assert ("Deployment", "disagg-dynamod-frontend") in found
    assert ("CustomResourceDefinition", "dynamodinstances.dynamod.dev") in found
    worker = found["StatefulSet", "disagg-dynamod-worker"]["spec"]
    assert worker["replicas"] == 3
    main_container = container(found, "StatefulSet", "disagg-dynamod-worker")
    assert main_container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert "--service-name=Worker" in main_container["args"]
    config = config_of(found, "disagg-dynamod")
    assert config["graph"] == "graphs.disagg:Frontend"
    assert config["Worker"]["ServiceArgs"]["workers"] == 1, "a pod has one process of it"
    assert config["Frontend"] == {"port": 8000, "host": "0.0.0.0"}
    (line,) = said
    assert "kubectl create secret generic disagg-dynamod --from-file=secret=cluster.secret" in line


def test_the_service_of_clients_is_no_part_of_discovery(printed: Any) -> None:
    found, _ = printed(*DISAGG)
    labelled = [name for (kind, name), one in found.items() if kind == "Service" and "dynamod.dev/graph" in labels(one)]
    assert labelled == ["disagg-dynamod-pods"]


def labels(one: Any) -> Any:
    return one["metadata"]["labels"]


def test_what_is_of_this_machine_is_said(printed: Any, tmp_path: Path) -> None:
    (tmp_path / "my.gguf").touch()
    own = "from dynamod.graph.service import service\n\n@service(dynamo={'namespace': 'n'})\nclass Own:\n    pass\n"
    (tmp_path / "own.py").write_text(own)
    words = ("--Worker.model=my.gguf", "--Worker.ServiceArgs.nodes=[one]", "--allow-unsigned")
    _, said = printed(*DISAGG, *words)
    assert said == [
        "configs/disagg.yaml: Worker.ServiceArgs.nodes: nodes are pods; a nodeSelector says where pods run",
        f"configs/disagg.yaml: Worker.model: {tmp_path}/my.gguf is a file of this machine; the image or a volume "
        "needs it",
    ]
    _, said = printed("own.py:Own", "--allow-unsigned")
    assert said == [f"own.py:Own: Own: {tmp_path}/own.py is a file of this machine; the image needs the module"]


def test_a_planner_scales_deployments_and_may_do_nothing_else(printed: Any) -> None:
    found, _ = printed("graphs.disagg_planner:Frontend", "-f", "configs/disagg_planner.yaml", "--name", "p")
    pools = {"Worker": "deployment/p-dynamod-worker", "PrefillWorker": "deployment/p-dynamod-prefill-worker"}
    planner = config_of(found, "p-dynamod")["Planner"]
    assert (planner["environment"], planner["kubernetes-deployments"]) == ("kubernetes", pools)
    assert {("Deployment", one.partition("/")[2]) for one in pools.values()} <= {*found}
    (role,) = [one for (kind, _), one in found.items() if kind == "Role"]
    scaling = [rule for rule in role["rules"] if rule["apiGroups"] in (["apps"], [""])]
    assert scaling == [
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    ]
    env = container(found, "Deployment", "p-dynamod-worker")["env"]
    assert {"name": "DYNAMOD_KUBERNETES_COST", "value": "true"} in env


def test_models_on_demand_are_deployments_without_pods(printed: Any, tmp_path: Path) -> None:
    models = {"small": {"engine": "mocker", "model": "sample"}, "Big One": {"engine": "mocker", "model": "sample"}}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"models": models, "budget": {"models": 1}}))
    found, _ = printed("-f", "models.yaml", "--name=m")
    assert {name: one["spec"]["replicas"] for (kind, name), one in found.items() if kind == "Deployment"} == {
        "m-dynamod-frontend": 1,
        "m-dynamod-small": 0,
        "m-dynamod-big-one": 0,
    }
    assert found["Deployment", "m-dynamod-frontend"]["spec"]["strategy"] == {"type": "Recreate"}
    entries = config_of(found, "m-dynamod")["Processor"]["models"]
    workloads = {"deployment/m-dynamod-small", "deployment/m-dynamod-big-one"}
    assert {one["workload"] for one in entries.values()} == workloads
    (role,) = [one for (kind, _), one in found.items() if kind == "Role"]
    assert {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]} in role["rules"]
    from dynamod.graph.load import load_graph

    (tmp_path / "pod.yaml").write_text(found["ConfigMap", "m-dynamod"]["data"]["graph.yaml"])
    assert {*load_graph(None, "pod.yaml", service_name="Frontend").services} == {"Frontend", "Processor"}
    assert load_graph(None, "pod.yaml", service_name="small").services["small"].workers == 1


def test_pods_take_over_what_is_of_pods(printed: Any) -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    main_container = {
        "command": [*WORKER, *ARGS],
        "image": "other",
        "workingDir": "/w",
        "env": [{"name": "A", "value": "b"}, {"name": "T", "valueFrom": secret}],
        "envFrom": [{"secretRef": {"name": "hf"}}],
        "resources": {"limits": {"amd.com/gpu": "1", "memory": "1Gi"}, "requests": {"cpu": "2"}},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    pod = {
        "containers": [{"name": "main", **main_container}],
        "nodeSelector": {"zone": "a"},
        "volumes": [{"name": "models", "emptyDir": {}}],
        "hostNetwork": True,
    }
    data = beta(Web=dict(FRONT))
    data["spec"]["components"].append(
        {"name": "VllmDecodeWorker", "type": "decode", "podTemplate": {"spec": pod}, "sharedMemorySize": "2Gi"}
    )
    found, said = printed("--secret=shared", data=data)
    spec = found["StatefulSet", "mine-dynamod-vllm-decode-worker"]["spec"]["template"]["spec"]
    (one,) = spec["containers"]
    assert one["resources"] == {"limits": {"memory": "1Gi", "amd.com/gpu": 1}, "requests": {"cpu": "2"}}
    assert {"name": "T", "valueFrom": secret} in one["env"]
    assert one["envFrom"] == [{"secretRef": {"name": "hf"}}]
    assert {"name": "models", "mountPath": "/models"} in one["volumeMounts"]
    assert {"name": "models", "emptyDir": {}} in spec["volumes"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in spec["volumes"]
    assert spec["nodeSelector"] == {"zone": "a"}
    place = "dgd.yaml: spec.components"
    assert said == [
        f"{place}.0.podTemplate.spec.containers.0.image: is not carried over: --image names an image of dynamod",
        f"{place}.1.podTemplate.spec.hostNetwork: is not carried over",
        f"{place}.1.podTemplate.spec.containers.0.image: is not carried over: --image names an image of dynamod",
    ]


def test_an_older_version_has_the_same_parts(printed: Any) -> None:
    services = {
        "Frontend": {"componentType": "frontend"},
        "Decode": {
            "componentType": "worker",
            "replicas": 2,
            "envFromSecret": "hf",
            "sharedMemory": {"size": "1Gi"},
            "resources": {"limits": {"gpu": "1", "cpu": "4"}},
            "extraPodSpec": {"mainContainer": {"command": [*WORKER, *ARGS]}, "tolerations": [{"key": "x"}]},
        },
    }
    found, said = printed("--secret=shared", data=resource("v1alpha1", {"services": services}))
    assert said == []
    spec = found["StatefulSet", "mine-dynamod-decode"]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["replicas"], pod["tolerations"]) == (2, [{"key": "x"}])
    (one,) = pod["containers"]
    assert one["envFrom"] == [{"secretRef": {"name": "hf"}}]
    assert one["resources"] == {"limits": {"cpu": "4", "nvidia.com/gpu": 1}}


def test_the_config_of_pods_is_the_graph(printed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each pod reads the config of the ConfigMap, with the name of its component."""
    from dynamod.graph.load import load_graph

    data = beta(
        Web={**FRONT, "main": {"env": [{"name": "LITERAL", "value": "$${X}"}]}},
        answers={"type": "worker", "replicas": 0, "main": {"command": [*WORKER, *ARGS, "--speedup-ratio", "3"]}},
    )
    found, _ = printed(data=data)
    assert found["StatefulSet", "mine-dynamod-answers"]["spec"]["replicas"] == 0
    (tmp_path / "pod.yaml").write_text(found["ConfigMap", "mine-dynamod"]["data"]["graph.yaml"])
    whole = load_graph(None, "dgd.yaml")
    for name, service in (("answers", "answers"), ("Web", "Web")):
        graph = load_graph(None, "pod.yaml", service_name=name)
        assert graph.services[service].workers == 1
        assert graph.services[service].envs == whole.services[service].envs
        assert graph.services[service].component == whole.services[service].component
    assert load_graph(None, "pod.yaml").services["answers"].config == whole.services["answers"].config
    assert whole.services["Web"].envs == {"LITERAL": "${X}"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*DISAGG, "--name", "Big"), "--name 'Big' is no name in Kubernetes"),
        ((*DISAGG, "--name", "a" * 32), "is longer than 52 characters"),
        ((*DISAGG, "--allow-unsigned", "--secret=x"), "--allow-unsigned excludes --secret"),
        ((*DISAGG, "--Frontend.port=x"), "Frontend.port: expected int, got 'x'"),
        ((*DISAGG, "--nothing"), "unknown flag --nothing"),
        (("graphs.agg:Frontend", "-f", "dgd.yaml"), "dgd.yaml: kind: the deployment is the graph"),
    ],
)
def test_wrong_words_are_one_line(printed: Any, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    printed(data=beta(Web=dict(FRONT), w={"main": {"command": [*WORKER, *ARGS]}}))
    with pytest.raises(UserError) as caught:
        printed(*words)
    assert says in str(caught.value).replace("dgd.yaml:1:", "dgd.yaml:").replace("dgd.yaml:2:", "dgd.yaml:")


def test_two_components_with_one_name_are_refused(printed: Any) -> None:
    worker = {"main": {"command": [*WORKER, *ARGS]}}
    with pytest.raises(UserError, match="two-words and TwoWords would both be mine-dynamod-two-words"):
        printed(data=beta(Web=dict(FRONT), TwoWords=dict(worker), **{"two-words": dict(worker)}))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("PrefillWorker", "prefill-worker"), ("VLLMDecode", "vllm-decode"), ("worker_2", "worker-2"), ("W1", "w1")],
)
def test_names_of_components_are_names_of_resources(name: str, wanted: str) -> None:
    assert short(name) == wanted
