"""A planner scales a pool to zero and back at a fake API server."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.features.kubernetes.fake_api import FakeApi, endpoint_slice
from tests.features.kubernetes.zero import MODELS, ON_DEMAND, zero_and_back


class FakeCluster:
    """A fake API server in a thread of its own, and the pods of a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.api = folder, FakeApi()
        self._ended, self._started = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(20)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.api.start()
        self._started.set()
        await self._ended.wait()
        await self.api.stop()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(20)

    def applied(self, manifests: list[Any]) -> None:
        for one in manifests:
            if one["kind"] == "Deployment":
                self.api.scales[f"deployments/{one['metadata']['name']}"] = one["spec"]["replicas"]

    def environment(self, pod: str) -> Mapping[str, str]:
        where = self.folder / pod
        where.mkdir()
        return {
            "DYNAMOD_CLUSTER": "auto",
            "DYNAMOD_NODE": pod,
            "DYNAMOD_SOCKET": str(where / "d.sock"),
            "DYNAMOD_DISCOVERY": "kubernetes",
            "DYNAMOD_KUBERNETES_URL": self.api.url,
            "DYNAMOD_KUBERNETES_GRAPH": "zero-dynamod",
            "DYNAMOD_TCP_ADDRESS": "127.0.0.1",
            "DYNAMOD_CLUSTER_SECRET": "0123456789abcdef" * 4,
            "DYNAMOD_TRUST": "require",
            "POD_NAME": pod,
            "POD_NAMESPACE": "ns",
            "POD_UID": f"uid-{pod}",
        }

    def replicas(self, workload: str) -> int:
        return self.api.scales.get(f"deployments/{workload}", 0)

    def ready(self, workload: str, pods: list[str]) -> None:
        self.api.there[f"deployments/{workload}"] = len(pods)
        self._do(self.api.put("endpointslices", endpoint_slice(dict.fromkeys(pods, True))))


@pytest.fixture
def cluster(machine: Any) -> Iterator[FakeCluster]:
    cluster = FakeCluster(Path(machine.folder))
    yield cluster
    cluster.end()


def test_a_waiting_request_brings_a_pool_back_from_zero(machine: Any, cluster: FakeCluster) -> None:
    wanted = zero_and_back(machine, cluster)
    assert wanted[-1] == 0
    assert max(wanted) >= 1
    verbs = {(verb, plural) for verb, plural, _ in cluster.api.requests if "scale" in plural}
    assert verbs == {("get", "deployments/scale"), ("patch", "deployments/scale")}


def test_a_request_starts_the_pod_of_a_model_on_demand(machine: Any, cluster: FakeCluster) -> None:
    assert zero_and_back(machine, cluster, MODELS, ON_DEMAND) == [0, 1, 0, 1, 0]
