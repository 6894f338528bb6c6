"""What a node does while etcd is away, stopped, restarted, wiped, compacted or cut off, and when it is back."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest

from dynamod.discovery.etcd import bridge as etcd_impl
from dynamod.discovery.etcd import client as etcd_client
from dynamod.discovery.etcd.client import connect
from dynamod.discovery.etcd.errors import CLOSED, EtcdAway
from dynamod.discovery.etcd.settings import EtcdSettings

Until = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(etcd_impl, "RETRY_AT_MOST", 0.3)
    monkeypatch.setattr(etcd_client, "CALL", 1.5)
    caplog.set_level(logging.INFO, "dynamod.registry")


async def test_etcd_that_comes_late(
    unstarted: Any, nodes: Any, eventually: Until, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_impl, "SAY", 0.5)
    one, two = nodes(unstarted.settings()), nodes(unstarted.settings())
    await nodes.system.ready(one.ref, timeout=1)
    lease = one.put("v1/a")
    gone = one.put("v1/b")
    one.registry.revoke(gone)
    assert one.seen == {"v1/a": b"1"}
    await eventually(lambda: len(_alone(caplog)) >= 4)
    assert f"etcd at {unstarted.url} does not answer (" in _alone(caplog)[0]
    assert "refused" in _alone(caplog)[0]
    assert len(_alone(caplog)) <= 6, "a line from time to time, not one for each attempt"
    assert one.bridge.inspection()["connected"] is False
    await unstarted.start()
    await eventually(lambda: two.seen == {"v1/a": b"1"})
    assert one.bridge.inspection()["leases"] == {f"{lease:x}": "held"}
    assert one.bridge.inspection()["last_error"] == ""


def _alone(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.endswith("continuing with this node alone")]


async def test_a_node_without_etcd_ends_at_once(unstarted: Any, nodes: Any) -> None:
    one = nodes(unstarted.settings())
    one.put("v1/a")
    async with asyncio.timeout(1):
        await one.stop()


@pytest.mark.parametrize("lost", [None, 0.2, etcd_impl.LAST_PUT + 0.2])
async def test_a_node_ends_although_etcd_has_stopped(etcd: Any, nodes: Any, caplog: Any, lost: float | None) -> None:
    """`lost`: when the session with etcd ends meanwhile, and with it the calls that are under way."""
    why = "" if lost is None else CLOSED
    one = await nodes(etcd.settings()).joined()
    lease = one.put("v1/a")
    await one.settled()
    etcd.send(signal.SIGSTOP)
    one.put("v1/a", b"leaves", lease)
    async with asyncio.timeout(etcd_impl.LAST_PUT + etcd_impl.GOODBYE + 2):
        ends = asyncio.create_task(one.stop())
        if lost is not None:
            await asyncio.sleep(lost)
            one.bridge._over.set_result(EtcdAway("no answer to watch"))
        await ends
    assert f"1 leases are left to their TTL of 5 s ({why}" in caplog.text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_etcd_restarts(
    etcd: Any, nodes: Any, eventually: Until, caplog: pytest.LogCaptureFixture, how: int
) -> None:
    one, two = await nodes(etcd.settings()).joined(), await nodes(etcd.settings()).joined()
    stays, goes, changes = one.put("v1/stays"), one.put("v1/goes"), one.put("v1/changes")
    await eventually(lambda: len(two.seen) == 3)
    etcd.end(how)
    await eventually(lambda: not one.bridge.connected and not two.bridge.connected)
    one.registry.revoke(goes)
    one.put("v1/changes", b"2", changes)
    new = one.put("v1/new")
    assert len(two.seen) == 3, "the last known view stays"
    await eventually(lambda: "continuing with the last known view" in caplog.text)  # once all of the session has ended
    two.news.clear()
    await etcd.start()
    await eventually(lambda: two.seen == one.seen == {"v1/stays": b"1", "v1/changes": b"2", "v1/new": b"1"})
    assert sorted(two.news) == [("v1/changes", b"2"), ("v1/goes", None), ("v1/new", b"1")]
    await one.settled()
    assert one.bridge.inspection()["leases"].keys() == {f"{lease:x}" for lease in (stays, changes, new)}


async def test_etcd_loses_its_data(etcd: Any, nodes: Any, eventually: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_impl, "GRACE", 2.0)
    one, two, dead = [await nodes(etcd.settings()).joined() for _ in range(3)]
    lease = one.put("v1/a")
    for number in range(20):
        one.put("v1/a", b"%d" % number, lease)
        await one.settled()
    dead.put("v1/dead")
    await eventually(lambda: len(two.seen) == 2)
    await dead.kill()
    etcd.end(signal.SIGKILL)
    etcd.wipe()
    two.news.clear()
    await etcd.start()
    await one.settled()
    await eventually(lambda: two.bridge.inspection()["keys"]["remote"] == 1)
    assert len(two.seen) == 2, "who is missing gets time to come back"
    await eventually(lambda: "v1/dead" not in two.seen)
    assert two.news == [("v1/dead", None)], "and who came back was never away"
    settings = etcd.settings()
    async with connect(settings.endpoints[0], settings) as raw:
        assert (await raw.snapshot("v1/"))[0]["v1/a"].lease == lease
    one.put("v1/a", b"after", lease)
    await eventually(lambda: two.seen == {"v1/a": b"after"})


async def test_etcd_stops_for_longer_than_the_ttl(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = await nodes(etcd.settings(ttl=1)).joined(), await nodes(etcd.settings(ttl=1)).joined()
    lease = one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)
    etcd.send(signal.SIGSTOP)
    await eventually(lambda: not one.bridge.connected and not two.bridge.connected)
    one.put("v1/b", lease=lease)
    await asyncio.sleep(1.0)
    assert two.seen == {"v1/a": b"1"}
    etcd.send(signal.SIGCONT)
    await eventually(lambda: one.bridge.connected and two.bridge.connected)
    await asyncio.sleep(1.5)  # by now every lease that expired is gone from etcd
    await one.settled()
    await eventually(lambda: two.seen == {"v1/a": b"1", "v1/b": b"1"})
    assert one.seen == two.seen
    assert one.bridge.inspection()["leases"] == {f"{lease:x}": "held"}


async def test_history_is_replayed_after_a_cut(
    etcd: Any, nodes: Any, ways: Any, eventually: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_impl, "GRACE", 60.0)
    one, two, way, lease = await _cut_off(etcd, nodes, ways, eventually)
    one.registry.delete("v1/a", lease)
    one.put("v1/b", lease=lease)
    one.put("v1/passing", lease=lease)
    await one.settled()
    one.registry.delete("v1/passing", lease)
    await one.settled()
    two.news.clear()
    await way.open()
    await eventually(lambda: two.seen == {"v1/b": b"1", "v1/kept": b"1"}, 5)
    assert sorted(two.news) == [("v1/a", None), ("v1/b", b"1")]


async def test_compacted_history_is_replaced_by_a_snapshot(
    etcd: Any, nodes: Any, ways: Any, eventually: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_impl, "GRACE", 1.0)
    one, two, way, lease = await _cut_off(etcd, nodes, ways, eventually)
    one.registry.delete("v1/a", lease)
    one.put("v1/b", lease=lease)
    await one.settled()
    settings = etcd.settings()
    async with connect(settings.endpoints[0], settings) as raw:
        _, revision = await raw.snapshot("v1/")
        await raw._kv.Compact(raw._rpc.CompactionRequest(revision=revision, physical=True), timeout=3)
    await way.open()
    await eventually(lambda: "v1/b" in two.seen)
    assert "v1/a" in two.seen, "nobody knows whether it was deleted"
    await eventually(lambda: "v1/a" not in two.seen)
    one.put("v1/b", b"2", lease)
    await eventually(lambda: two.seen == {"v1/b": b"2", "v1/kept": b"1"})
    assert two.bridge.connected


async def _cut_off(etcd: Any, nodes: Any, ways: Any, eventually: Until) -> tuple[Any, Any, Any, int]:
    """Node one at etcd; node two knows its keys a and kept, and has lost its way to etcd."""
    way = ways(etcd.port)
    await way.open()
    settings = EtcdSettings.from_environment({"ETCD_ENDPOINTS": way.url})
    assert settings is not None
    one, two = await nodes(etcd.settings()).joined(), await nodes(settings).joined()
    lease = one.put("v1/a")
    one.put("v1/kept", lease=lease)
    await eventually(lambda: len(two.seen) == 2)
    await way.cut()
    await eventually(lambda: not two.bridge.connected)
    return one, two, way, lease


async def test_another_member_takes_over(
    etcd: Any, nodes: Any, ways: Any, eventually: Until, caplog: pytest.LogCaptureFixture
) -> None:
    nobody, first, second = ways(etcd.port), ways(etcd.port), ways(etcd.port)
    await first.open()
    await second.open()
    urls = ",".join([nobody.url, first.url, second.url])
    settings = EtcdSettings.from_environment({"ETCD_ENDPOINTS": urls})
    assert settings is not None
    one, two = await nodes(settings).joined(), await nodes(etcd.settings()).joined()
    lease = one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)
    assert one.bridge.inspection()["endpoint"] == first.url
    await first.cut()
    one.put("v1/b", lease=lease)
    await eventually(lambda: "v1/b" in two.seen)
    assert one.bridge.inspection()["endpoint"] == second.url
    await first.open()
    await second.cut()
    one.put("v1/c", lease=lease)
    await eventually(lambda: "v1/c" in two.seen)
    assert ("v1/a", None) not in two.news
    assert "does not answer" not in caplog.text, "one member away is no outage"


async def test_changes_under_way_when_etcd_breaks_are_said_again(
    etcd: Any, nodes: Any, ways: Any, eventually: Until
) -> None:
    way = ways(etcd.port)
    await way.open()
    settings = EtcdSettings.from_environment({"ETCD_ENDPOINTS": way.url})
    assert settings is not None
    one, two = await nodes(settings).joined(), await nodes(etcd.settings()).joined()
    for turn in range(4):
        leases = [one.put(f"v1/{turn}/{number}") for number in range(40)]
        await asyncio.sleep(0.002 * turn)
        await way.cut()
        for lease in leases[::2]:
            one.registry.revoke(lease)
        await way.open()
        await eventually(lambda: two.seen == one.seen)
        assert len(one.seen) == 20 * (turn + 1)
