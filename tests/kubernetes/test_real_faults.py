"""Faults of a real cluster: a node that is cut off, an API server that is away; `run_real.sh`."""

import os
import time
from collections import Counter

import pytest

from tests.e2e.command import until

from .cluster import START, Cluster, alone, under_way
from .control_plane import NODE_GRACE
from .node import Node

pytestmark = pytest.mark.heavy
AWAY = float(os.environ.get("DYNAMOD_TEST_AWAY", "90"))
"""Seconds without an API server; `DYNAMOD_TEST_AWAY=600` for the ten minutes."""


def condition(cluster: Cluster, node: Node) -> str:
    """Whether the control plane calls a node ready: True, False or Unknown."""
    found = cluster.plane.get(f"/api/v1/nodes/{node.name}")["status"]["conditions"]
    return next(str(one["status"]) for one in found if one["type"] == "Ready")


def test_a_node_that_is_cut_off_is_not_missed_and_comes_back(cluster: Cluster) -> None:
    wanted = alone(cluster)
    fronts, workers = cluster.ready("frontend"), cluster.ready("worker")
    names = {node.name: {pod.name for pod in node.pods.values()} for node in cluster.nodes}
    assert all(pods & workers.keys() for pods in names.values()), "both nodes have workers"
    stays = next(node for node in cluster.nodes if names[node.name] & fronts.keys())
    (lost,) = [node for node in cluster.nodes if node is not stays]
    front = next(address for name, address in fronts.items() if name in names[stays.name])
    left = names[stays.name] & workers.keys()
    before = cluster.migrations(front)
    assert under_way(cluster, lost.cut, [front]) == wanted
    assert cluster.migrations(front) > before, "answers were at the node that was cut off"
    until(lambda: condition(cluster, lost) == "Unknown", 6 * NODE_GRACE, "the control plane calls the node unreachable")
    until(lambda: cluster.ready("worker").keys() == left, 30, "its pods are not ready")
    until(lambda: cluster.served(front) == len(left), 30, "the frontend has no worker of the node")
    before = cluster.migrations(front)
    assert under_way(cluster, lambda: None, [front]) == wanted, "meanwhile the other workers answer"
    assert cluster.migrations(front) == before, "and nothing is tried at the node"
    lost.heal()
    until(lambda: condition(cluster, lost) == "True", 30, "the node is ready again")
    until(lambda: cluster.ready("worker").keys() == workers.keys(), 60, "its pods are ready again")
    assert cluster.ready("worker") == workers, "they are the same pods"
    for address in cluster.wait("frontend", 2).values():
        until(lambda: cluster.served(address) == 4, 30, "its workers serve again")  # noqa: B023 - awaited at once
    assert under_way(cluster, lambda: None) == wanted


def test_an_api_server_that_is_away_is_not_missed(cluster: Cluster) -> None:
    """Meanwhile a container ends and is started again. The kubelet cannot report this."""
    wanted = alone(cluster)
    victim = cluster.pod("demo-dynamod-worker-2")
    before = victim.restarts
    assert under_way(cluster, cluster.plane.go_away) == wanted
    end = time.monotonic() + AWAY
    fronts = [pod.address for pod in cluster.pods if "-frontend-" in pod.name]
    assert under_way(cluster, victim.kill, fronts) == wanted
    rounds = 0
    while time.monotonic() < end:
        assert under_way(cluster, lambda: None, fronts) == wanted
        rounds += 1
    back = time.time()
    assert under_way(cluster, cluster.plane.come_back, fronts) == wanted
    assert victim.restarts == before + 1
    cluster.wait("worker", 4)
    for front in fronts:
        until(lambda: cluster.served(front) == 4, START, "four workers, also the new one")  # noqa: B023 - awaited at once
    asked = cluster.plane.requests(back)
    kinds = Counter((verb, kind) for _, verb, kind in asked)
    seconds = Counter(int(at - back) for at, _, _ in asked)
    most = max(seconds.values())
    print(f"{AWAY:g} s away, {rounds} rounds of {len(wanted)} streams; then {kinds}, at most {most} in a second")
    for kind in ("dynamodinstances", "endpointslices"):
        assert kinds["list", kind] <= 6, "a pod lists at most once"
        assert kinds["watch", kind] <= 6 * 3
    assert kinds["patch", "dynamodinstances"] <= 6 * 3
    assert most <= 6 * 3, "pods do not come back together"
