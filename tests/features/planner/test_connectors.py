"""Who runs the processes of pools. Kubernetes is a fake API server."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dynamod.actor.testing import virtual
from dynamod.discovery.memory import MemoryRegistry
from dynamod.features.planner.connectors import CONFIRM, Kubernetes, Virtual
from dynamod.features.planner.records import Order
from dynamod.message.errors import DynamodError, UserError
from tests.features.kubernetes.fake_api import FakeApi


class Etcd:
    """The registry of a planner, and the program that watches its decisions."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry(random.Random(1))
        self.lease, self.program = self.registry.grant(), self.registry.grant()
        self.puts: list[tuple[str, str]] = []

    def put(self, key: str, value: bytes) -> None:
        self.puts.append((key.removeprefix("v1/dynamo/planner/"), value.decode()))
        self.registry.put(key, value, self.lease)

    def confirm(self, value: bytes) -> None:
        self.registry.put("v1/dynamo/planner/scaled_decision_id", value, self.program)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.registry, name)


def states(pool: Any) -> list[str]:
    return [one.state for one in pool.replicas]


@virtual
async def test_an_outside_program_is_told_and_confirms() -> None:
    etcd = Etcd()
    one = Virtual(etcd, "dynamo", ["PrefillWorker"])
    assert states(await one.pool("Worker", [7, 8])) == ["Ready", "Ready"]
    asked = asyncio.ensure_future(one.scale("Worker", Order(number=1, since=0.0, replicas=3)))
    await asyncio.sleep(1)
    assert etcd.puts == [("num_decode_workers", "3"), ("decision_id", "1")]
    etcd.confirm(b"rubbish")
    await asyncio.sleep(1)
    assert not asked.done()
    etcd.confirm(b"1")
    await asked
    assert states(await one.pool("Worker", [7, 8])) == ["Ready", "Ready", "Starting"]
    asked = asyncio.ensure_future(one.scale("PrefillWorker", Order(number=2, since=0.0, replicas=0)))
    await asyncio.sleep(1)
    assert etcd.puts[2:] == [("num_prefill_workers", "0"), ("decision_id", "2")]
    etcd.confirm(b"2")
    await asked
    assert states(await one.pool("PrefillWorker", [9])) == ["Draining"]


@virtual
async def test_a_program_that_never_confirms_ends_the_wait_and_the_next_planner_goes_on_counting() -> None:
    etcd = Etcd()
    etcd.confirm(b"41")
    one = Virtual(etcd, "dynamo", [])
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await one.scale("Worker", Order(number=1, since=0.0, replicas=3))
    assert asyncio.get_running_loop().time() - begun == CONFIRM
    assert etcd.puts[-1] == ("decision_id", "42")
    assert states(await one.pool("Worker", [7])) == ["Ready"]


@asynccontextmanager
async def api() -> AsyncIterator[FakeApi]:
    server = FakeApi()
    server.namespace = "models"
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_workloads_of_a_fake_kubernetes_are_scaled() -> None:
    async with api() as server:
        server.scales = {"deployments/decode": 2, "deployments/prefillworker": 1, "statefulsets/w": 3}
        names = {"Worker": "decode", "Third": "statefulset/w", "Other": "deployment/other"}
        one = Kubernetes(server.url, "models", names)
        assert states(await one.pool("Worker", [7])) == ["Ready", "Starting"]
        await one.scale("Worker", Order(number=1, since=0.0, replicas=4))
        await one.scale("PrefillWorker", Order(number=2, since=0.0, replicas=0))
        await one.scale("Third", Order(number=3, since=0.0, replicas=1))
        assert server.scales == {"deployments/decode": 4, "deployments/prefillworker": 0, "statefulsets/w": 1}
        assert states(await one.pool("PrefillWorker", [9])) == ["Draining"]
        with pytest.raises(DynamodError, match=r"get deployments.apps other in namespace models is not found"):
            await one.pool("Other", [])
        server.refused = {("patch", "deployments/scale")}
        with pytest.raises(DynamodError) as caught:
            await one.scale("Worker", Order(number=4, since=0.0, replicas=1))
        grant = "grant the verb 'patch' on 'deployments/scale' of the API group 'apps' to its service account"
        assert grant in str(caught.value)
    with pytest.raises(DynamodError):
        await one.pool("Worker", [7])


def test_an_unknown_kind_of_workload_is_named() -> None:
    with pytest.raises(UserError, match="'replicaset/x' is no workload: unknown kind 'replicaset'"):
        Kubernetes("http://localhost:1", "models", {"Worker": "replicaset/x"})


def test_kubernetes_outside_a_pod_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "DYNAMOD_KUBERNETES_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="this is no pod") as error:
        Kubernetes("", "", {})
    assert "DYNAMOD_KUBERNETES_URL" in error.value.line()
