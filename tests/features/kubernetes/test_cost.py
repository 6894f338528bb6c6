"""The deletion cost of a pod: its open requests, at a fake API server."""

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.actor import System
from dynamod.features.kubernetes import daemon as module
from dynamod.features.kubernetes.daemon import ANNOTATION, KubernetesPart, cost
from dynamod.message.errors import UserError
from dynamod.message.rows import Row
from tests.discovery.conftest import until

from .fake_api import FakeApi


def row(process: str, running: int = 0, waiting: int = 0) -> Row:
    return Row(graph="g", component=process, process=process, state="Ready", running=running, waiting=waiting)


@pytest.mark.parametrize(
    ("requests", "wanted"), [(0, 0), (1, 1), (31, 31), (32, 32), (33, 32), (1000, 992), (10**6, 983040)]
)
def test_many_requests_are_rounded_so_that_few_writes_follow(requests: int, wanted: int) -> None:
    assert cost([row("a", requests)]) == wanted


def test_components_of_one_process_count_once() -> None:
    assert cost([row("a", 2, 1), row("a", 2, 1), row("b", waiting=4)]) == 7


class Parts:
    """The parts of daemons that have `rows`."""

    def __init__(self) -> None:
        self.systems: list[System] = []
        self.rows: list[Row] = []

    async def start(self) -> KubernetesPart:
        part = KubernetesPart(SimpleNamespace(graphs=SimpleNamespace(rows=lambda: self.rows)))  # type: ignore[arg-type]
        self.systems.append(system := System())
        await system.__aenter__()
        await system.ready(system.start("kubernetes", lambda: part), timeout=5)
        return part


@pytest.fixture
async def parts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parts]:
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    monkeypatch.setattr(module, "RETRY_AT_MOST_S", 0.05)
    parts = Parts()
    yield parts
    for one in parts.systems:
        await one.__aexit__(None, None, None)


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    await fake.start()
    pod = {"POD_NAME": "w-0", "POD_NAMESPACE": "ns", "POD_UID": "uid-w-0"}
    for name, value in {**pod, "DYNAMOD_KUBERNETES_URL": fake.url, "DYNAMOD_KUBERNETES_COST": "true"}.items():
        monkeypatch.setenv(name, value)
    yield fake
    await fake.stop()


async def test_the_cost_follows_the_work_and_is_written_when_it_changes(fake: FakeApi, parts: Parts) -> None:
    parts.rows = [row("w.0", 3, 2)]
    part = await parts.start()
    await until(lambda: fake.annotations.get("w-0") == {ANNOTATION: "5"})
    written = fake.count("patch", "pods")
    await asyncio.sleep(0.2)
    assert fake.count("patch", "pods") == written, "nothing has changed"
    parts.rows = []
    await until(lambda: fake.annotations["w-0"] == {ANNOTATION: "0"})
    await until(lambda: part.inspection() == {"cost": 0, "last_error": ""})  # once the server's answer is here


async def test_a_missing_role_is_one_line_and_is_waited_for(
    fake: FakeApi, parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    fake.refused = {("patch", "pods")}
    part = await parts.start()
    await until(lambda: fake.count("patch", "pods") > 2)
    (line,) = [one.getMessage() for one in caplog.records if "deletion cost" in one.getMessage()]
    assert "grant the verb 'patch' on 'pods' of the core API group ''" in line
    fake.refused = set()
    await until(lambda: part.written == 0)


async def test_off_by_default(fake: FakeApi, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNAMOD_KUBERNETES_COST")
    await parts.start()
    await asyncio.sleep(0.2)
    assert not fake.requests


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"DYNAMOD_KUBERNETES_COST": "yes"}, "DYNAMOD_KUBERNETES_COST is 'yes'"),
        ({"POD_NAME": ""}, "POD_NAME is not set"),
    ],
)
async def test_wrong_variables_end_the_start(
    fake: FakeApi, parts: Parts, monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says):
        await parts.start()
