"""Models whose workers are workloads of a cluster, at a fake API server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamod.features.on_demand import workloads as module
from dynamod.features.on_demand.workloads import Workloads
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.pools import Pool
from tests.features.kubernetes.fake_api import FakeApi


class Processes:
    """The daemon, for models without a workload."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def scale(self, component: str, replicas: int) -> None:
        self.asked.append((component, replicas))

    async def pool(self, component: str) -> Pool:
        return Pool(replicas=())


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    fake = FakeApi()
    await fake.start()
    for name, value in {"DYNAMOD_KUBERNETES_URL": fake.url, "POD_NAMESPACE": "ns"}.items():
        monkeypatch.setenv(name, value)
    yield fake
    await fake.stop()


def states(pool: Pool) -> list[str]:
    return [one.state for one in pool.replicas]


async def test_a_model_is_replicas_of_its_workload(fake: FakeApi) -> None:
    processes = Processes()
    workers = Workloads({"small": "deployment/small"}, processes)
    fake.scales["deployments/small"] = 0
    assert states(await workers.pool("small")) == []
    await workers.scale("small", 1)
    fake.there["deployments/small"] = 1
    assert states(await workers.pool("small")) == ["Starting"]
    ending = asyncio.ensure_future(workers.scale("small", 0))
    await asyncio.sleep(0.2)
    assert not ending.done(), "its pod has open answers, and the memory that the next model needs"
    found = await workers.pool("small")
    assert (states(found), found.wanted) == (["Draining"], 0)
    fake.there["deployments/small"] = 0
    await asyncio.wait_for(ending, 5)
    await workers.scale("other", 1)
    assert processes.asked == [("other", 1)]


async def test_pods_that_stay_and_a_missing_role_are_errors(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workloads({"small": "deployment/small"}, Processes())
    fake.scales["deployments/small"] = fake.there["deployments/small"] = 1
    monkeypatch.setattr(module, "LEAVE_S", 0.1)
    with pytest.raises(DynamodError, match=r"pods of deployment/small have not left within 0.1 s"):
        await workers.scale("small", 0)
    fake.refused = {("get", "deployments/scale")}
    with pytest.raises(DynamodError, match="grant the verb 'get' on 'deployments/scale'"):
        await workers.pool("small")


@pytest.mark.parametrize(
    ("targets", "says"),
    [({"m": "job/x"}, "unknown kind 'job'"), ({"m": "x"}, "a model has a workload of Kubernetes, and this is no pod")],
)
def test_wrong_workloads_are_named(monkeypatch: pytest.MonkeyPatch, targets: Any, says: str) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "DYNAMOD_KUBERNETES_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=says):
        Workloads(targets, Processes())
