"""The machine of the end-to-end tests; for tests that are marked `heavy` a control plane, and one with the chart."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import machine, played, servers

from .cluster import Cluster
from .control_plane import NAMESPACE, ControlPlane, programs
from .test_chart import CHART

__all__ = ["machine", "plane", "played", "servers"]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        plane.start()
        plane.kubectl("apply", "-f", str(CHART / "crds"))
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.kubectl("wait", "--for=condition=Established", "crd/dynamodinstances.dynamod.dev", "--timeout=30s")
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    programs()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip netns")
    folder = Path(tempfile.mkdtemp(prefix="dk", dir="/tmp"))  # short: sockets of daemons are below it
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Two frontends and four workers, ready on two nodes."""
    shared_cluster.settled()
    return shared_cluster
