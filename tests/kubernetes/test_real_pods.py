"""The chart on a real control plane: API server, controllers and scheduler, and pods on test nodes; `run_real.sh`."""

from typing import Any

import pytest
import yaml

from tests.e2e.command import until
from tests.features.kubernetes.zero import CONFIG, WORKLOAD

from .cluster import GRAPH, START, Cluster, alone, is_killed, is_scaled, is_updated, under_way
from .control_plane import NAMESPACE

pytestmark = pytest.mark.heavy


def test_frontends_serve_the_models_of_worker_pods(cluster: Cluster) -> None:
    fronts = cluster.ready("frontend").values()
    until(lambda: all(cluster.served(one) == 4 for one in fronts), 30, "four workers at each frontend")
    slices = cluster.plane.get(
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector=dynamod.dev%2Fgraph%3D{GRAPH}"
    )
    assert sum(len(one["endpoints"]) for one in slices["items"]) == 6, "the controller took the label of the service"
    assert alone(cluster) == alone(cluster)


def test_a_pod_killed_in_mid_answer_changes_no_text(cluster: Cluster) -> None:
    is_killed(cluster)


def test_kubectl_scale_ends_no_stream(cluster: Cluster) -> None:
    is_scaled(cluster)


def test_a_rolling_update_ends_no_stream(cluster: Cluster) -> None:
    is_updated(cluster)


def test_the_pod_with_least_work_leaves_a_deployment(cluster: Cluster) -> None:
    scale = ("scale", "deployment/demo-dynamod-pool")
    cluster.kubectl("scale", "statefulset/demo-dynamod-worker", "--replicas=0")
    cluster.kubectl(*scale, "--replicas=3")
    cluster.wait("pool", 3)
    until(lambda: not cluster.running("worker"), 60, "the end of the other workers")
    (front, *_) = cluster.ready("frontend").values()
    until(lambda: cluster.served(front, "pool") == 3, 30, "three workers at the frontend")
    stream = cluster.stream(front, "a long one", max_tokens=1500)
    assert stream.error is None

    def costs() -> dict[str, str]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io%2Fcomponent%3Dpool"
        pods = cluster.plane.get(path)["items"]
        key = "controller.kubernetes.io/pod-deletion-cost"
        return {one["metadata"]["name"]: one["metadata"].get("annotations", {}).get(key, "") for one in pods}

    until(lambda: sorted(costs().values()) == ["0", "0", "1"], 60, "each pod writes its work")
    (busy,) = [name for name, cost in costs().items() if cost == "1"]
    cluster.kubectl(*scale, "--replicas=1")
    until(lambda: [*cluster.ready("pool")] == [busy], 30, f"{busy} is the pod that stays")
    assert stream.read().error is None
    assert stream.finish == "length"


def test_an_evicted_pod_ends_no_stream(cluster: Cluster) -> None:
    """As `kubectl drain` does it; the pod comes back under its name."""
    cluster.kubectl("scale", "deployment/demo-dynamod-pool", "--replicas=0")
    cluster.kubectl("scale", "statefulset/demo-dynamod-worker", "--replicas=2")
    before = cluster.wait("worker", 2)
    until(lambda: not cluster.running("pool"), 60, "the end of the other workers")
    wanted = alone(cluster)
    name = "demo-dynamod-worker-0"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    client = cluster.nodes[0].client
    assert under_way(cluster, lambda: client.call("POST", path, eviction)) == wanted
    until(lambda: cluster.ready("worker").get(name, before[name]) != before[name], START, "a new pod of the name")


def test_a_planner_scales_a_graph_to_zero_and_back(cluster: Cluster, machine: Any) -> None:
    """By the user's words: `dynamo manifest ... | kubectl apply`; a request that waits starts the pod."""
    (machine.folder / "zero.yaml").write_text(yaml.safe_dump({**CONFIG, "Frontend": {"port": 8000}}))
    printed = machine.run("dynamo", "manifest", "-f", "zero.yaml", "--name=zero", "--secret=shared", "--drain=20")
    assert printed.code == 0, printed.err
    (machine.folder / "resources.yaml").write_text(printed.out)
    cluster.kubectl("apply", "-f", str(machine.folder / "resources.yaml"))
    graph = "zero-dynamod"
    until(lambda: cluster.ready("frontend", graph) and cluster.ready("planner", graph), START, "frontend and planner")

    def idle() -> bool:
        found = cluster.kubectl("get", f"deployment/{WORKLOAD}", "-o", "jsonpath={.spec.replicas}")
        return found == "0" and not cluster.running("worker", graph)

    until(idle, 120, "no workers without requests")
    (front,) = cluster.ready("frontend", graph).values()
    assert cluster.stream(front, "is one there?", max_tokens=8).read().text
    assert cluster.running("worker", graph), "the request was what started the pod"
    until(idle, 120, "no workers without requests, again")
