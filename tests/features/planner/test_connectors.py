"""Who runs the processes of pools. Kubernetes is a stand-in: a server with the API path of a Deployment's scale."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from dynamod.actor.testing import virtual
from dynamod.discovery.memory import MemoryRegistry
from dynamod.features.planner.connectors import CONFIRM, Kubernetes, Virtual
from dynamod.features.planner.records import Order
from dynamod.message.errors import DynamodError, UserError


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
async def stand_in(replicas: dict[str, int]) -> AsyncIterator[str]:
    """The API path of deployments in namespace `models`; yields its URL."""

    async def scale(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in replicas:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        if request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            replicas[name] = (await request.json())["spec"]["replicas"]
        return web.json_response({"kind": "Scale", "spec": {"replicas": replicas[name]}, "status": {"replicas": 1}})

    app = web.Application()
    app.router.add_route("*", "/apis/apps/v1/namespaces/models/deployments/{name}/scale", scale)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_deployments_of_a_stand_in_for_kubernetes_are_scaled() -> None:
    replicas = {"decode": 2, "prefillworker": 1}
    async with stand_in(replicas) as url:
        one = Kubernetes(url, "models", {"Worker": "decode"})
        assert states(await one.pool("Worker", [7])) == ["Ready", "Starting"]
        await one.scale("Worker", Order(number=1, since=0.0, replicas=4))
        await one.scale("PrefillWorker", Order(number=2, since=0.0, replicas=0))
        assert replicas == {"decode": 4, "prefillworker": 0}
        assert states(await one.pool("PrefillWorker", [9])) == ["Draining"]
        with pytest.raises(DynamodError, match="deployments/other/scale answers 404"):
            await one.pool("Other", [])
    with pytest.raises(DynamodError, match=r"kubernetes: GET .*decode/scale"):
        await one.pool("Worker", [7])


def test_kubernetes_outside_a_pod_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match="this is no pod") as error:
        Kubernetes("", "", {})
    assert "kubernetes-url" in error.value.line()
