"""An API server that is away for ten minutes, with many pods, in virtual time and with the real pauses."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from dynamod.actor.testing import virtual
from dynamod.features.kubernetes import bridge as module
from dynamod.features.kubernetes.api import CALL

from .conftest import Pod, pod_of
from .fake_api import endpoint_slice
from .memory_api import REFUSING, SILENT, MemoryApi

PODS = 60
AWAY = 600.0
KEY = "v1/instances/a/b/c/"
SETTLED = module.RETRY_AT_MOST * 1.5 + CALL + 1
"""Seconds after the return within which every pod has tried again, also one whose last attempt still waits."""


class Fleet:
    """Pods that all see each other."""

    def __init__(self, api: MemoryApi, pods: list[Pod]) -> None:
        self.api, self.pods = api, pods

    def see(self, count: int) -> bool:
        return all(sum(key.startswith(KEY) for key in pod.keys) == count for pod in self.pods)

    @property
    def connected(self) -> list[bool]:
        return [pod.bridge.inspection()["connected"] for pod in self.pods]


@contextlib.asynccontextmanager
async def fleet(monkeypatch: pytest.MonkeyPatch, folder: Path, count: int = PODS) -> AsyncIterator[Fleet]:
    api = MemoryApi()
    monkeypatch.setattr(aiohttp, "ClientSession", api.session)
    pods = [pod_of("http://localhost", folder, f"p{number}") for number in range(count)]
    for number, pod in enumerate(pods):
        pod.put(f"{KEY}{number:04}")
        await pod.start()
    api.put("endpointslices", endpoint_slice({f"p{number}": True for number in range(count)}))
    await asyncio.sleep(30)
    made = Fleet(api, pods)
    assert made.see(count)
    try:
        yield made
    finally:
        for pod in pods:
            await pod.end()


@pytest.mark.parametrize("state", [REFUSING, SILENT])
def test_ten_minutes_change_nothing_and_watches_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    @virtual
    async def test() -> None:
        now = asyncio.get_running_loop().time
        async with fleet(monkeypatch, tmp_path) as found:
            api, begun = found.api, now()
            caplog.clear()
            api.away(state)
            found.pods[0].put(f"{KEY}new")
            for _ in range(int(AWAY / 10)):
                await asyncio.sleep(10)
                assert all(len(pod.keys) >= PODS for pod in found.pods), "the last view holds"
            assert not any(found.connected), "they all know that the server is away"
            tries = len(api.requests) - sum(at < begun for at, _, _ in api.requests)
            attempts = AWAY / module.RETRY_AT_MOST + 10  # of one part of one pod
            assert tries <= PODS * 2 * attempts + attempts, f"{tries} requests while it was away"
            assert api.busiest(begun + 60) <= 0.4 * PODS, "pauses of the pods are not the same ones"
            lines = [one for one in caplog.records if "continuing" in one.getMessage()]
            assert len(lines) <= 9 * PODS, "pauses between lines grow"
            back = now()
            api.back()
            await asyncio.sleep(SETTLED)
            assert found.see(PODS + 1), "what changed meanwhile is told"
            assert all(found.connected)
            assert api.counted("list", back) == 0, "watches resume where they stopped"
            assert api.counted("watch", back) <= 2 * PODS
            assert api.counted("patch", back) <= 2
            assert api.busiest(back) <= 0.4 * PODS

    with caplog.at_level(logging.WARNING):
        test()


@pytest.mark.parametrize(("away", "pods"), [(0.0, 150), (AWAY, PODS)])
def test_a_server_that_comes_back_without_its_history_is_listed_once_by_each_pod(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, away: float, pods: int
) -> None:
    """Also when it was away for an instant, so that all pods hear of it in one moment."""

    @virtual
    async def test() -> None:
        now = asyncio.get_running_loop().time
        async with fleet(monkeypatch, tmp_path, pods) as found:
            api, back = found.api, now() + away
            if away:
                api.away(REFUSING)
                await asyncio.sleep(away)
            api.remove("dynamodinstances", "p7")
            api.back(restarted=True)
            await asyncio.sleep(SETTLED + 150 * module.RELIST_EACH)
            assert found.see(pods), "pod 7 has said it again, because it saw that its resource was gone"
            assert all(found.connected)
            assert api.counted("list", back) == 2 * pods
            assert api.busiest(back, "list") <= 1.3 * 2 / module.RELIST_EACH, (
                "lists are spread by the size of the fleet"
            )

    test()


def test_hours_without_a_change_cost_a_watch_every_four_minutes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bookmarks keep versions young, so that no list is needed although the server drops old changes."""

    @virtual
    async def test() -> None:
        now = asyncio.get_running_loop().time
        async with fleet(monkeypatch, tmp_path, 10) as found:
            begun = now()
            for _ in range(60):
                await asyncio.sleep(60)
                found.api.version += 5  # changes of others
                found.api.oldest = found.api.version - 20
            assert found.api.counted("list", begun) == 0
            assert found.api.counted("watch", begun) <= 10 * 2 * 15
            assert all(found.connected)

    test()


def test_a_server_that_ends_each_watch_at_once_is_asked_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a proxy in between may do."""

    @virtual
    async def test() -> None:
        now = asyncio.get_running_loop().time
        async with fleet(monkeypatch, tmp_path, 10) as found:
            found.api.short = True
            found.api.back(restarted=True)
            await asyncio.sleep(60)
            begun = now()
            await asyncio.sleep(AWAY)
            assert found.api.counted("watch", begun) <= 10 * 2 * (AWAY / module.RETRY_AT_MOST + 10)
            found.api.short = False
            found.pods[0].put(f"{KEY}new")
            await asyncio.sleep(SETTLED)
            assert found.see(11)

    test()
