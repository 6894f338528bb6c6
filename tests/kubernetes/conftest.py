"""Commands run on the machine of the end-to-end tests; a control plane for the tests that are marked `heavy`."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import machine, played, servers

from .control_plane import NAMESPACE, ControlPlane
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
