"""The chart on a control plane with two nodes, and streams of its frontends."""

import base64
import copy
import http.client
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.asking import Streaming, chat_body
from tests.e2e.command import until

from .control_plane import NAMESPACE, ControlPlane
from .node import Network, Node, PodRuntime
from .test_chart import CHART, rendered

GRAPH = "demo-dynamod"
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
    """A control plane with two nodes, and a release of the chart in it."""

    release = "demo"

    def __init__(self, folder: Path) -> None:
        self.network = Network()
        self.plane = ControlPlane(folder, self.network.address)
        self.nodes: list[Node] = []

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
        self.nodes = [Node(plane, self.network, plane.folder / name, f"node-{name}") for name in "ab"]
        for node in self.nodes:
            node.begin()
        self.install()

    @property
    def graph(self) -> str:
        """As the label of the release says it."""
        return f"{self.release}-dynamod"

    def another(self, release: str) -> "Cluster":
        """This one, for another release."""
        other = copy.copy(self)
        other.release = release
        return other

    def install(self, *values: str) -> None:
        """As `helm install` and `helm upgrade` do it."""
        code, out, err = rendered(*VALUES, *values, namespace=NAMESPACE, release=self.release)
        assert code == 0, err
        for one in yaml.safe_load_all(out):
            if one:
                self.plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=one)

    def end(self) -> None:
        for node in self.nodes:
            node.end()
        self.plane.stop()
        self.network.end()

    def kubectl(self, *words: str) -> str:
        return self.plane.kubectl(*words, "-n", NAMESPACE).stdout.decode()

    def ready(self, component: str, graph: str = "") -> dict[str, str]:
        """Addresses of the ready pods that are to stay, by name. `graph`: by default that of the release."""
        graph = graph or self.graph
        label = f"app.kubernetes.io%2Fcomponent%3D{component},dynamod.dev%2Fgraph%3D{graph}"
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={label}"
        found = {}
        for one in self.nodes[0].client.get(path)["items"]:
            conditions = {each["type"]: each["status"] for each in one["status"].get("conditions", ())}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in one["metadata"]:
                found[one["metadata"]["name"]] = one["status"]["podIP"]
        return found

    @property
    def pods(self) -> list[PodRuntime]:
        """Pods that have a process, also pods that are being deleted."""
        return [pod for node in self.nodes for pod in list(node.pods.values())]

    def running(self, component: str, graph: str = "") -> list[str]:
        """Names of pods that have a process; pods that are being deleted count."""
        start = f"{graph or self.graph}-{component}-"
        return [one.name for one in self.pods if one.name.startswith(start)]

    def pod(self, name: str) -> PodRuntime:
        """The pod of this name that is to stay."""
        return next(one for one in self.pods if one.name == name and one.leaving is None)

    def scale(self, frontends: int, workers: int) -> None:
        """Also the end of what is too many; other workers end."""
        wanted = {"frontend": frontends, "worker": workers, "pool": 0}
        for component, replicas in wanted.items():
            kind = "statefulset" if component == "worker" else "deployment"
            self.kubectl("scale", f"--replicas={replicas}", f"{kind}/{self.graph}-{component}")
        for component, replicas in wanted.items():
            self.wait(component, replicas)
            until(lambda: len(self.running(component)) == replicas, 90, f"the end of {component}")  # noqa: B023

    def settled(self) -> None:
        """Wait until the chart's pods are there and know each other, whatever happened before."""
        self.scale(2, 4)
        fronts = self.ready("frontend").values()
        until(lambda: all(self.served(one) == 4 for one in fronts), 60, "four workers at each frontend")

    def metrics(self, *fronts: str) -> str:
        """Of frontends, by default all that are ready."""
        found = []
        for address in fronts or self.ready("frontend").values():
            connection = http.client.HTTPConnection(address, 8000, timeout=10)
            try:
                connection.request("GET", "/metrics")
                found.append(connection.getresponse().read().decode())
            finally:
                connection.close()
        return "\n".join(found)

    def migrations(self, *fronts: str) -> int:
        """How often frontends, by default all that are ready, have continued an answer at another worker."""
        rows = re.findall(r"^dynamo_frontend_model_migration_total\{[^}]*\} (\d+)", self.metrics(*fronts), re.MULTILINE)
        return sum(map(int, rows))

    def wait(self, component: str, replicas: int, seconds: float = START) -> dict[str, str]:
        until(lambda: len(self.ready(component)) == replicas, seconds, f"{replicas} ready pods of {component}")
        return self.ready(component)

    def stream(self, address: str, text: str, **fields: Any) -> Streaming:
        connection = http.client.HTTPConnection(address, 8000, timeout=60)
        return Streaming(connection, chat_body(text, stream=True, **{**FIELDS, **fields}))

    def served(self, address: str, component: str = "worker") -> int:
        """Workers of a component that a frontend knows."""
        connection = http.client.HTTPConnection(address, 8000, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().read().count(f'"{self.graph}-{component}-'.encode())
        finally:
            connection.close()


TEXTS = [f"story {number}" for number in range(int(os.environ.get("DYNAMOD_TEST_STREAMS", "64")))]


def alone(cluster: Cluster, texts: Sequence[str] = TEXTS, **fields: Any) -> list[str]:
    """The answers without a fault."""
    (front, *_) = cluster.ready("frontend").values()
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: cluster.stream(front, text, **fields).read().text, texts))


def under_way(
    cluster: Cluster,
    fault: Callable[[], object],
    fronts: Sequence[str] = (),
    texts: Sequence[str] = TEXTS,
    **fields: Any,
) -> list[str]:
    """The answers of streams of all frontends, or of `fronts`, with a fault that begins while all are open."""
    fronts = fronts or [*cluster.ready("frontend").values()]
    opened = threading.Barrier(len(texts) + 1, timeout=60)

    def read(number: int) -> tuple[Streaming, float]:
        stream = cluster.stream(fronts[number % len(fronts)], texts[number], **fields)
        opened.wait()
        return stream.read(), time.monotonic()

    with ThreadPoolExecutor(len(texts)) as pool:
        answers = [pool.submit(read, number) for number in range(len(texts))]
        opened.wait()
        begun = time.monotonic()
        fault()
        found = [one.result() for one in answers]
    errors = [f"after {end - begun:.1f} s: {one.error}" for one, end in found if one.error]
    assert not errors, f"{len(errors)} of {len(texts)} streams, {errors[:3]}"  # pytest shows no values of this file
    assert {one.finish for one, _ in found} == {"length"}
    assert min(end for _, end in found) > begun, "all were open when the fault began"
    return [one.text for one, _ in found]


def is_killed(cluster: Cluster) -> None:
    """Kill a worker's container in mid-answer."""
    wanted = alone(cluster)
    victim = cluster.pod(f"{cluster.graph}-worker-1")
    before, restarts = cluster.migrations(), victim.restarts
    assert under_way(cluster, victim.kill) == wanted
    assert cluster.migrations() > before, "answers were at the pod that was killed"
    until(lambda: victim.restarts == restarts + 1, 30, "the container is started again")
    cluster.wait("worker", 4)


def is_scaled(cluster: Cluster) -> None:
    """Two of four workers leave, and come back."""
    wanted = alone(cluster)
    scale = ("scale", f"statefulset/{cluster.graph}-worker")
    assert under_way(cluster, lambda: cluster.kubectl(*scale, "--replicas=2")) == wanted
    cluster.wait("worker", 2)
    cluster.kubectl(*scale, "--replicas=4")
    cluster.wait("worker", 4)


def is_updated(cluster: Cluster) -> None:
    """Pods of all workloads are replaced."""
    wanted = alone(cluster)
    before = {*cluster.ready("frontend")}
    workloads = (f"statefulset/{cluster.graph}-worker", f"deployment/{cluster.graph}-frontend")

    def update() -> None:
        cluster.kubectl("rollout", "restart", *workloads)
        until(lambda: not before & {*cluster.ready("frontend")}, START, "new frontends")

    assert under_way(cluster, update) == wanted
    until(lambda: not before & {*cluster.ready("frontend")} and len(cluster.ready("worker")) == 4, START)
    cluster.kubectl("rollout", "status", workloads[0], f"--timeout={START:.0f}s")
