"""A pool that a planner scales to zero and back in a cluster: the pods are processes of the test machine."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from dynamod.features.planner.settings import PlannerSettings

PLANNER = {
    "min-endpoint": 0,
    "hold": 1,
    "window": 1,
    "startup": 1,
    "adjustment-interval": 0.5,
    "metric-pulling-interval": 0.2,
}
assert {key.replace("-", "_") for key in PLANNER} <= {*PlannerSettings.__struct_fields__}
CONFIG = {
    "graph": "graphs.agg_planner:Frontend",
    "Frontend": {"port": 0},
    "Processor": {"queue_timeout": 60},
    "Worker": {"engine": "mocker", "model": "sample"},
    "Planner": PLANNER,
}
WORKLOAD = "zero-dynamod-worker"
MODELS = {
    "models": {"sample": {"engine": "mocker", "model": "sample", "ttl": 2}},
    "Frontend": {"port": 0},
    "Processor": {"queue_timeout": 60},
}
"""A model on demand, whose workload is the next one."""
ON_DEMAND = "zero-dynamod-sample"


class Cluster(Protocol):
    """What stands for the control plane."""

    def applied(self, manifests: list[Any]) -> None:
        """`kubectl apply`."""

    def environment(self, pod: str) -> Mapping[str, str]:
        """Of the pod, which there is from now on."""
        ...

    def replicas(self, workload: str) -> int:
        """Wanted of a Deployment."""
        ...

    def ready(self, workload: str, pods: list[str]) -> None:
        """As the controller of EndpointSlices says it; pods that are not among them have gone."""


class Kubelet:
    """Starts and ends the worker pods that the Deployment wants.

    `log`: how many it wanted, in turn. `idle`: it wants none, and none is left.
    """

    def __init__(self, machine: Any, cluster: Cluster, args: list[str], workload: str) -> None:
        self._machine, self._cluster, self._args, self._workload = machine, cluster, args, workload
        self._running: dict[str, Any] = {}
        self._made = 0
        self.log: list[int] = []
        self.idle = True
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self.stop.set()
        self._thread.join(60)
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            while not self.stop.wait(0.1):
                wanted = self._cluster.replicas(self._workload)
                if not self.log or wanted != self.log[-1]:
                    self.log.append(wanted)
                self.idle = self.idle and not wanted
                self._reach(wanted)
                self.idle = not wanted
        except BaseException as error:
            self.failed = error

    def _reach(self, wanted: int) -> None:
        while len(self._running) < wanted:
            name = f"w-{self._made}"
            self._made += 1
            command = self._machine.start("dynamo", *self._args, **self._cluster.environment(name))
            command.ready()
            self._running[name] = command
            self._cluster.ready(self._workload, [*self._running])
        while len(self._running) > wanted:
            name, command = next(iter(self._running.items()))
            del self._running[name]
            self._cluster.ready(self._workload, [*self._running])  # readiness goes first
            command.end(15)


def zero_and_back(machine: Any, cluster: Cluster, config: Any = None, workload: str = WORKLOAD) -> list[int]:
    """Waits for zero, asks a question that waits for a pod, waits for zero again; the numbers that were wanted."""
    (machine.folder / "zero.yaml").write_text(yaml.safe_dump(config or CONFIG))
    printed = machine.run("dynamo", "manifest", "-f", "zero.yaml", "--name=zero", "--secret=shared", "--no-crd")
    assert printed.code == 0, printed.err
    found = list(yaml.safe_load_all(printed.out))
    cluster.applied(found)
    (config,) = [one["data"]["graph.yaml"] for one in found if one["kind"] == "ConfigMap"]
    file = Path(machine.folder) / "graph.yaml"
    file.write_text(config)
    args = {}
    for one in found:
        if one["kind"] in ("Deployment", "StatefulSet"):
            (container,) = one["spec"]["template"]["spec"]["containers"]
            words = [word.replace("/etc/dynamod/graph", str(machine.folder)) for word in container["args"]]
            args[one["metadata"]["name"].removeprefix("zero-dynamod-")] = [*container["command"][1:], *words]
    kubelet = Kubelet(machine, cluster, args[workload.removeprefix("zero-dynamod-")], workload)
    try:
        front = machine.start("dynamo", *args["frontend"], "--Frontend.port=0", **cluster.environment("front"))
        url = front.ready()
        if "planner" in args:
            machine.start("dynamo", *args["planner"], **cluster.environment("planner")).ready()

        def served() -> bool:
            return '"sample"' in machine.ask(url, "/v1/models")[1]

        machine.until(served, 60)  # a frontend is ready before its workers and its planner are
        machine.until(lambda: machine.chats(url, ["hello"], max_tokens=4) != [""] and bool(kubelet.log))
        machine.until(lambda: kubelet.idle, 60)
        machine.until(served, 10)
        before = len(kubelet.log)
        (text,) = machine.chats(url, ["is one there?"], max_tokens=8)
        assert text
        assert len(kubelet.log) > before, "the request was what started the pod"
        machine.until(lambda: kubelet.idle, 60)
        return kubelet.log
    finally:
        kubelet.join()
