"""Nodes joined by a real etcd: keys come and go, and who ends how."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dynamod.discovery.etcd import bridge as etcd_impl
from dynamod.discovery.etcd.bridge import EtcdBridge
from dynamod.discovery.etcd.client import EtcdClient, connect
from dynamod.discovery.etcd.errors import LeaseMissing
from dynamod.discovery.keys import OPERATOR_SETTINGS
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.errors import UserError

Until = Callable[..., Any]


@pytest.fixture
async def etcd(shared_etcd: Any) -> AsyncIterator[Any]:
    """One for all; nothing of a test is in it when the next begins."""
    yield shared_etcd
    settings = shared_etcd.settings()
    async with connect(settings.endpoints[0], settings) as client:
        assert (await client.snapshot("v1/"))[0] == {}


@pytest.fixture
async def raw(etcd: Any) -> AsyncIterator[EtcdClient]:
    """A stranger at the same etcd."""
    settings = etcd.settings()
    async with connect(settings.endpoints[0], settings) as client:
        yield client


async def pair(nodes: Any, etcd: Any, **kwargs: Any) -> tuple[Any, Any]:
    one, two = nodes(etcd.settings(**kwargs)), nodes(etcd.settings(**kwargs))
    return await one.joined(), await two.joined()


async def test_keys_come_and_go(etcd: Any, nodes: Any, raw: EtcdClient, eventually: Until) -> None:
    one, two = await pair(nodes, etcd)
    lease = one.put("v1/instances/a", b"first")
    one.put("v1/mdc/a", b"card", lease)
    await eventually(lambda: two.seen == {"v1/instances/a": b"first", "v1/mdc/a": b"card"})
    items, _ = await raw.snapshot("v1/")
    assert {item.lease for item in items.values()} == {lease}, "the instance id is the lease id"
    one.put("v1/instances/a", b"second", lease)
    await eventually(lambda: two.seen["v1/instances/a"] == b"second")
    other = two.put("v1/instances/b", b"from two")
    await eventually(lambda: one.seen.get("v1/instances/b") == b"from two")
    one.registry.delete("v1/mdc/a", lease)
    await eventually(lambda: "v1/mdc/a" not in two.seen)
    one.registry.revoke(lease)
    two.registry.revoke(other)
    await eventually(lambda: not one.seen and not two.seen)
    assert one.news == [
        ("v1/instances/a", b"first"),
        ("v1/mdc/a", b"card"),
        ("v1/instances/a", b"second"),
        ("v1/instances/b", b"from two"),
        ("v1/mdc/a", None),
        ("v1/instances/a", None),
        ("v1/instances/b", None),
    ], "own changes are told once, at once, and their echo never"
    assert await raw.snapshot("v1/") == ({}, one.bridge.inspection()["revision"])
    with pytest.raises(LeaseMissing):
        await raw.revoke(lease)
    assert one.bridge.inspection()["leases"] == {}


async def test_the_order_of_changes_is_kept(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = await pair(nodes, etcd)
    lease, rng = one.registry.grant(), random.Random(1)
    for number in range(300):
        key = f"v1/{rng.randrange(3)}"
        if rng.random() < 0.3:
            one.registry.delete(key, lease)
        else:
            one.put(key, b"%03d" % number, lease)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() / 500)
    one.put("v1/end", b"", lease)
    await eventually(lambda: "v1/end" in two.seen and two.seen == one.seen)
    for key in one.seen:
        values = [value for at, value in two.news if at == key and value is not None]
        assert values == sorted(set(values)), "never twice, never back"
        mine = iter([value for at, value in one.news if at == key])
        assert all(value in mine for value in [value for at, value in two.news if at == key])


async def test_many_keys_at_the_start(etcd: Any, nodes: Any, eventually: Until) -> None:
    registry = MemoryRegistry(random.Random(9))
    for number in range(60):
        lease = registry.grant()
        for key in range(4):
            registry.put(f"v1/{number}/{key}", b"x" * 300, lease)
    lease = registry.grant()
    for number in range(260):
        registry.put(f"v1/one/{number}", b"y" * 3000, lease)
    one, two = nodes(etcd.settings(), registry), nodes(etcd.settings())
    await eventually(lambda: len(two.seen) == 500)
    assert two.seen == one.seen
    await one.stop()
    await eventually(lambda: not two.seen)


async def test_a_clean_stop_revokes_at_once(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = await pair(nodes, etcd, ttl=60)
    one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)
    await one.stop()
    await eventually(lambda: not two.seen, 2)


async def test_what_a_node_says_last_is_heard_before_its_keys_go(etcd: Any, nodes: Any, eventually: Until) -> None:
    """That it leaves: else others take it for a node that is lost."""
    one, two = await pair(nodes, etcd)
    leases = [one.put(f"v1/{number}") for number in range(3)]
    await eventually(lambda: len(two.seen) == 3)
    two.news.clear()
    for number, lease in enumerate(leases):
        one.put(f"v1/{number}", b"leaves", lease)
        await asyncio.sleep(0)  # the first is under way, the others wait for it
    await one.stop()
    await eventually(lambda: not two.seen)
    for number in range(3):
        assert [value for key, value in two.news if key == f"v1/{number}"] == [b"leaves", None]


async def test_keys_of_a_killed_node_vanish_after_its_ttl(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = await pair(nodes, etcd, ttl=1)
    one.put("v1/a")
    two.put("v1/b")
    await eventually(lambda: len(one.seen) == len(two.seen) == 2)
    await asyncio.sleep(2)
    assert len(one.seen) == len(two.seen) == 2, "leases are kept alive"
    await one.kill()
    assert "v1/a" in two.seen
    await eventually(lambda: list(two.seen) == ["v1/b"])


async def test_the_bridge_after_a_crash_adopts_the_leases(
    etcd: Any, nodes: Any, eventually: Until, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await pair(nodes, etcd, ttl=2)
    lease = one.put("v1/a")
    await eventually(lambda: "v1/a" in two.seen)
    await one.kill()
    heir = await nodes(etcd.settings(ttl=2), one.registry).joined()
    await heir.settled()
    await asyncio.sleep(3)
    assert two.news == [("v1/a", b"1")], "peers noticed nothing"
    heir.registry.revoke(lease)
    await eventually(lambda: not two.seen)
    assert "another node" not in caplog.text


async def test_an_expired_lease_is_granted_again(etcd: Any, nodes: Any, raw: EtcdClient, eventually: Until) -> None:
    one, two = await pair(nodes, etcd)
    lease, empty = one.put("v1/a"), one.registry.grant()
    await eventually(lambda: "v1/a" in two.seen)
    await one.settled()
    await raw.revoke(lease)  # what its expiry looks like from outside
    await raw.revoke(empty)
    await eventually(lambda: two.news == [("v1/a", b"1"), ("v1/a", None), ("v1/a", b"1")])
    assert (await raw.snapshot("v1/"))[0]["v1/a"].lease == lease
    assert one.news == [("v1/a", b"1")]
    await eventually(lambda: _wants(one, empty))
    await one.settled()
    one.put("v1/late", lease=empty)
    await eventually(lambda: "v1/late" in two.seen)


def _wants(node: Any, lease: int) -> bool:
    """Whether a key of this lease would be put: its loss has been seen, by the next keep-alive at the latest."""
    return node.bridge.inspection()["leases"][f"{lease:x}"] in ("wanted", "held")


async def test_an_id_that_is_not_free_is_waited_for(
    etcd: Any, nodes: Any, eventually: Until, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_impl, "TAKEN", 0.1)
    one, two = await pair(nodes, etcd)
    assert one.registry.grant(7) == 7
    one.put("v1/a", b"one", 7)
    await eventually(lambda: two.seen.get("v1/a") == b"one")
    assert two.registry.grant(7) == 7
    two.put("v1/b", b"two", 7)
    await eventually(lambda: two.bridge.inspection()["leases"] == {"7": "taken"})
    await asyncio.sleep(0.3)
    assert "v1/b" not in one.seen
    assert caplog.text.count("lease id 7 is held by another node") == 1
    one.registry.revoke(7)
    await eventually(lambda: one.seen == {"v1/b": b"two"})


async def test_a_foreign_key_never_overwrites_an_own_one(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = await pair(nodes, etcd)
    first = one.put("v1/a", b"one")
    await eventually(lambda: two.seen == {"v1/a": b"one"})
    second = two.put("v1/a", b"two")
    await two.settled()
    await eventually(lambda: one.registry.foreign_items() == [("v1/a", b"two")])
    assert one.seen == {"v1/a": b"one"}
    await asyncio.sleep(0.1)
    assert two.seen == {"v1/a": b"two"}, "and they do not fight"
    two.registry.delete("v1/a", second)
    await eventually(lambda: two.seen == {"v1/a": b"one"})
    one.registry.revoke(first)
    await eventually(lambda: not one.seen and not two.seen)


async def test_a_value_too_large_for_etcd_stays_here(
    etcd: Any, nodes: Any, eventually: Until, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await pair(nodes, etcd)
    lease = one.put("v1/big", b"x" * 2_000_000)
    one.put("v1/small", lease=lease)
    await eventually(lambda: "v1/small" in two.seen)
    await eventually(lambda: "v1/big with 2000000 bytes stays on this node" in caplog.text)
    assert one.bridge.connected
    one.put("v1/big", b"less", lease)
    await eventually(lambda: two.seen.get("v1/big") == b"less")


async def test_peers_learn_in_milliseconds(etcd: Any, nodes: Any, eventually: Until) -> None:
    one, two = await pair(nodes, etcd)
    came: asyncio.Queue[float] = asyncio.Queue()
    two.registry.follow("v1/", lambda key, value: came.put_nowait(time.perf_counter()))
    put, revoke = [], []
    for number in range(10):
        lease = one.registry.grant()
        await one.settled()
        for times, act in ((put, one.put), (revoke, lambda key, value, lease: one.registry.revoke(lease))):
            begin = time.perf_counter()
            act(f"v1/{number}", b"", lease)
            async with asyncio.timeout(5):
                times.append(await came.get() - begin)
    assert sorted(put)[5] < 0.25, "here 2 ms; nothing waits for a clock"
    assert sorted(revoke)[5] < 0.25


def test_without_the_library_it_says_what_to_install(etcd_settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aetcd.rpc", None)
    with pytest.raises(UserError, match="etcd client cannot be loaded") as caught:
        EtcdBridge(MemoryRegistry(random.Random(1)), etcd_settings)
    assert "pip install" in caught.value.hint


@pytest.fixture
def etcd_settings(unstarted: Any) -> Any:
    return unstarted.settings()


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dynamod.registry")


async def test_settings_that_operators_put(etcd: Any, nodes: Any, raw: EtcdClient, eventually: Until) -> None:
    """They hang on no lease. What changes while nobody looks is seen at the next look."""

    def seen(node: Any) -> dict[str, bytes]:
        return {key.removeprefix(OPERATOR_SETTINGS): value for key, value in node.registry.items(OPERATOR_SETTINGS)}

    await raw.put([(OPERATOR_SETTINGS + "org/early", b"1")], 0)
    one = await nodes(etcd.settings()).joined()
    await eventually(lambda: seen(one) == {"org/early": b"1"})
    await raw.put([(OPERATOR_SETTINGS + "late", b"2")], 0)
    await raw.put([(OPERATOR_SETTINGS + "org/early", b"3")], 0)
    await eventually(lambda: seen(one) == {"org/early": b"3", "late": b"2"})
    await raw.delete(OPERATOR_SETTINGS + "late", 0)
    await eventually(lambda: seen(one) == {"org/early": b"3"})
    assert one.seen == {}
    assert one.bridge.inspection()["keys"]["missing"] == 0
    await one.kill()
    assert seen(one) == {"org/early": b"3"}, "without etcd the last known ones hold"
    await raw.delete(OPERATOR_SETTINGS + "org/early", 0)
    again = await nodes(etcd.settings(), one.registry).joined()
    await eventually(lambda: seen(again) == {})
