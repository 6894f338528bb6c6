"""The chart on a real control plane: API server, controllers and scheduler, and pods on a test node; `run_real.sh`."""

import base64
import http.client
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.asking import Streaming, chat_body
from tests.e2e.command import until
from tests.features.kubernetes.zero import CONFIG, WORKLOAD

from .control_plane import NAMESPACE, ControlPlane, programs
from .node import Network, Node
from .test_chart import CHART, rendered
from .test_real import GRAPH

pytestmark = pytest.mark.heavy
START = 240.0
"""Seconds for all pods to be ready: eight daemons with their processes on two cores."""
FIELDS = {"max_tokens": 800, "ignore_eos": True}
VALUES = (
    *("security.secretName=shared", "drainSeconds=30", "startup.periodSeconds=1", "frontend.replicas=2"),
    *("workers.Worker.replicas=4", "workers.Pool.kind=Deployment", "workers.Pool.engine=mocker"),
    *("workers.Pool.model=sample", "workers.Pool.replicas=0", "workers.Pool.endpoint=dyn://dynamo.pool.generate"),
    'workers.Pool.args[0]=--extra-engine-args={"speedup_ratio": 0.2}',  # answers that last
)


class Cluster:
    """A control plane with one node, and the chart in it."""

    def __init__(self, folder: Path) -> None:
        self.network = Network()
        self.plane = ControlPlane(folder, self.network.address)
        self.node: Node | None = None

    def start(self) -> None:
        plane = self.plane
        plane.start()
        plane.start_controllers()
        plane.kubectl("apply", "-f", str(CHART / "crds"))
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl("wait", "--for=condition=Established", "crd/dynamodinstances.dynamod.dev", "--timeout=30s")
        secret = base64.b64encode(b"0123456789abcdef" * 4).decode()
        content = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shared"}, "data": {"secret": secret}}
        plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=content)
        self.node = Node(plane, self.network, plane.folder / "n")
        self.node.begin()
        self.install()

    def install(self, *values: str) -> None:
        """As `helm install` and `helm upgrade` do it."""
        code, out, err = rendered(*VALUES, *values, namespace=NAMESPACE)
        assert code == 0, err
        for one in yaml.safe_load_all(out):
            if one:
                self.plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=one)

    def end(self) -> None:
        if self.node is not None:
            self.node.end()
        self.plane.stop()
        self.network.end()

    def kubectl(self, *words: str) -> str:
        return self.plane.kubectl(*words, "-n", NAMESPACE).stdout.decode()

    def ready(self, component: str, graph: str = GRAPH) -> dict[str, str]:
        """Addresses of the ready pods that are to stay, by name."""
        label = f"app.kubernetes.io%2Fcomponent%3D{component},dynamod.dev%2Fgraph%3D{graph}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={label}"
        assert self.node is not None
        found = {}
        for one in self.node.client.get(path)["items"]:
            conditions = {each["type"]: each["status"] for each in one["status"].get("conditions", ())}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in one["metadata"]:
                found[one["metadata"]["name"]] = one["status"]["podIP"]
        return found

    def running(self, component: str, graph: str = GRAPH) -> list[str]:
        """Pods with a running process; pods that are being deleted count."""
        assert self.node is not None
        return [one.name for one in self.node.pods.values() if one.name.startswith(f"{graph}-{component}-")]

    def migrations(self) -> int:
        """How often frontends have continued an answer at another worker."""
        total = 0
        for address in self.ready("frontend").values():
            connection = http.client.HTTPConnection(address, 8000, timeout=10)
            try:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
            finally:
                connection.close()
            rows = re.findall(r"^dynamo_frontend_model_migration_total\{[^}]*\} (\d+)", text, re.MULTILINE)
            total += sum(map(int, rows))
        return total

    def wait(self, component: str, replicas: int, seconds: float = START) -> dict[str, str]:
        until(lambda: len(self.ready(component)) == replicas, seconds, f"{replicas} ready pods of {component}")
        return self.ready(component)

    def stream(self, address: str, text: str, **fields: Any) -> Streaming:
        connection = http.client.HTTPConnection(address, 8000, timeout=60)
        return Streaming(connection, chat_body(text, stream=True, **{**FIELDS, **fields}))

    def served(self, address: str) -> int:
        """Workers that a frontend knows."""
        connection = http.client.HTTPConnection(address, 8000, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().read().count(b'"demo-dynamod-worker-')
        finally:
            connection.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    programs()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip netns")
    folder = Path(tempfile.mkdtemp(prefix="dk", dir="/tmp"))  # short: sockets of daemons are below it
    made = Cluster(folder)
    try:
        made.start()
        made.wait("worker", 4)
        made.wait("frontend", 2)
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


TEXTS = [f"story {number}" for number in range(16)]


def alone(cluster: Cluster) -> list[str]:
    """The answers without a fault."""
    (front, *_) = cluster.ready("frontend").values()
    streams = [cluster.stream(front, text) for text in TEXTS]
    return [one.read().text for one in streams]


def under_way(cluster: Cluster, fault: Callable[[], object]) -> list[str]:
    """The answers of streams of both frontends, with a fault that begins while all are open."""
    fronts = [*cluster.ready("frontend").values()]
    streams = [cluster.stream(fronts[number % len(fronts)], text) for number, text in enumerate(TEXTS)]
    with ThreadPoolExecutor(len(streams)) as pool:
        answers = [pool.submit(one.read) for one in streams]
        fault()
        found = [one.result() for one in answers]
    assert [one.error for one in found if one.error] == []
    return [one.text for one in found]


def test_frontends_serve_the_models_of_worker_pods(cluster: Cluster) -> None:
    fronts = cluster.ready("frontend").values()
    until(lambda: all(cluster.served(one) == 4 for one in fronts), 30, "four workers at each frontend")
    slices = cluster.plane.get(
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector=dynamod.dev%2Fgraph%3D{GRAPH}"
    )
    assert sum(len(one["endpoints"]) for one in slices["items"]) == 6, "the controller took the label of the service"
    assert alone(cluster) == alone(cluster)


def test_a_pod_killed_in_mid_answer_changes_no_text(cluster: Cluster) -> None:
    wanted = alone(cluster)
    assert cluster.node is not None
    victim = cluster.node.pod("demo-dynamod-worker-1")
    before = cluster.migrations()
    assert under_way(cluster, victim.kill) == wanted
    assert cluster.migrations() > before, "answers were at the pod that was killed"
    until(lambda: victim.restarts == 1, 30, "the container is started again")
    cluster.wait("worker", 4)


def test_kubectl_scale_ends_no_stream(cluster: Cluster) -> None:
    wanted = alone(cluster)
    scale = ("scale", "statefulset/demo-dynamod-worker")
    assert under_way(cluster, lambda: cluster.kubectl(*scale, "--replicas=2")) == wanted
    cluster.wait("worker", 2)
    cluster.kubectl(*scale, "--replicas=4")
    cluster.wait("worker", 4)


def test_a_rolling_update_ends_no_stream(cluster: Cluster) -> None:
    wanted = alone(cluster)
    before = {*cluster.ready("frontend")}

    def update() -> None:
        cluster.kubectl("rollout", "restart", "statefulset/demo-dynamod-worker", "deployment/demo-dynamod-frontend")
        until(lambda: not before & {*cluster.ready("frontend")}, START, "new frontends")

    assert under_way(cluster, update) == wanted
    until(lambda: not before & {*cluster.ready("frontend")} and len(cluster.ready("worker")) == 4, START)
    cluster.kubectl("rollout", "status", "statefulset/demo-dynamod-worker", f"--timeout={START:.0f}s")


def test_an_api_server_that_restarts_is_not_missed(cluster: Cluster) -> None:
    wanted = alone(cluster)

    def restart() -> None:
        cluster.plane.stop("kube-apiserver")
        time.sleep(3)
        cluster.plane.start_api()

    assert under_way(cluster, restart) == wanted
    cluster.wait("worker", 4)


def test_the_pod_with_least_work_leaves_a_deployment(cluster: Cluster) -> None:
    scale = ("scale", "deployment/demo-dynamod-pool")
    cluster.kubectl("scale", "statefulset/demo-dynamod-worker", "--replicas=0")
    cluster.kubectl(*scale, "--replicas=3")
    cluster.wait("pool", 3)
    until(lambda: not cluster.running("worker"), 60, "the end of the other workers")
    (front, *_) = cluster.ready("frontend").values()
    stream = cluster.stream(front, "a long one", max_tokens=1500)

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
    assert cluster.node is not None
    client = cluster.node.client
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
