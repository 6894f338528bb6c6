"""Planners and pods at a real kube-apiserver: the scale subresource, and the deletion cost; `run_real.sh`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.features.kubernetes.zero import zero_and_back

from .control_plane import NAMESPACE, ControlPlane
from .test_real import environment, mounted, pod, ready

pytestmark = pytest.mark.heavy
GRAPH = "zero-dynamod"


class RealCluster:
    """The API server with the manifest's objects, and accounts that have the manifest's role and no more."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.uids: dict[str, str] = {}

    def applied(self, manifests: list[Any]) -> None:
        for one in manifests:
            self.plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", data=one)

    def environment(self, name: str) -> Mapping[str, str]:
        self.uids[name] = pod(self.plane, name)
        account = mounted(self.plane, self.folder / f"account-{name}", GRAPH)
        env = environment(self.plane, self.folder, name, self.uids[name], account)
        return env | {"DYNAMOD_KUBERNETES_GRAPH": GRAPH, "DYNAMOD_KUBERNETES_COST": "true"}

    def replicas(self, workload: str) -> int:
        found = self.plane.kubectl("get", f"deployment/{workload}", "-n", NAMESPACE, "-o", "jsonpath={.spec.replicas}")
        return int(found.stdout)

    def ready(self, workload: str, pods: list[str]) -> None:
        ready(self.plane, {name: self.uids[name] for name in pods}, graph=GRAPH)


def test_a_planner_scales_a_deployment_to_zero_and_back(plane: ControlPlane, machine: Any) -> None:
    cluster = RealCluster(plane, Path(machine.folder))
    wanted = zero_and_back(machine, cluster)
    assert wanted[-1] == 0
    assert max(wanted) >= 1
    # With the role of the manifest. The first write is after 2.5 to 7.5 s, the next after a refusal 5 to 15 s later.
    machine.until(lambda: annotation(plane, "front") == "0", 60, "the deletion cost of the frontend's pod")


def annotation(plane: ControlPlane, name: str) -> str:
    found = plane.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")["metadata"].get("annotations", {})
    return str(found.get("controller.kubernetes.io/pod-deletion-cost", ""))
