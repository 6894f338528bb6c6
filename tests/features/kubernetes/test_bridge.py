"""Pods that find each other by a fake API server: real HTTP with watches, outages, 410 and refusals."""

import asyncio
import time
from typing import Any

import pytest

from dynamod.daemon.cluster import cluster_of
from dynamod.message.errors import UserError
from tests.discovery.conftest import until

from .fake_api import FakeApi, endpoint_slice, resource

pytestmark = pytest.mark.usefixtures("quick")
KEY = "v1/instances/a/b/c/"


async def test_pods_see_each_other_at_a_fake_api_server(fake: FakeApi, pods: Any) -> None:
    one, two = pods("one"), pods("two")
    one.put(KEY + "1")
    one.put("local/own")
    await one.start()
    await two.start()
    await until(lambda: "one" in fake.objects["dynamodinstances"])
    written = fake.objects["dynamodinstances"]["one"]
    assert written["spec"] == {"node": "one", "keys": {KEY + "1": "{}"}}, "local keys stay in the node"
    assert written["metadata"]["ownerReferences"][0]["uid"] == "uid-one", "collected with the pod"
    assert two.keys == [], "it is not ready yet"
    await fake.put("endpointslices", endpoint_slice({"one": True, "two": True}))
    await until(lambda: two.keys == [KEY + "1"])
    assert two.bridge.inspection()["connected"]
    one.registry.delete(KEY + "1", one.lease)
    one.put("v1/exited/5", b"gone")
    await until(lambda: two.keys == ["v1/exited/5"])
    await one.end()
    await until(lambda: two.keys == [])
    assert list(fake.objects["dynamodinstances"]) == ["two"], "a pod that ends in good order leaves nothing"
    assert set(fake.tokens) == {"Bearer secret"}


async def test_what_a_pod_says_last_is_heard_at_a_fake_api_server(fake: FakeApi, pods: Any) -> None:
    """That its daemon leaves: else other pods take it for a lost one."""
    one, two = pods("one"), pods("two")
    heard: list[bytes | None] = []
    two.registry.watch(KEY, lambda _key, value: heard.append(value))
    one.put(KEY + "1")
    await one.start()
    await two.start()
    await fake.put("endpointslices", endpoint_slice({"one": True, "two": True}))
    await until(lambda: two.keys == [KEY + "1"])
    one.put(KEY + "1", b"leaves")
    await one.end()
    await until(lambda: two.keys == [])
    assert heard == [b"{}", b"leaves", None]
    two.put(KEY + "2")
    await until(lambda: KEY + "2" in fake.objects["dynamodinstances"]["two"]["spec"]["keys"])
    two.put(KEY + "2", b"leaves")
    fake.refused.add(("patch", "dynamodinstances"))
    await two.end()
    assert fake.objects["dynamodinstances"] == {}, "the resource goes, too, where the last words are refused"


@pytest.mark.parametrize("when", ["first", "later", "last"])
async def test_no_write_overtakes_the_removal_at_a_slow_fake_api_server(fake: FakeApi, pods: Any, when: str) -> None:
    """The pod ends during its first write, a later one, or one before its last: the resource would stay."""
    one = pods("one")
    if when == "first":
        fake.slow = 0.2
        await one.start()
    else:
        await one.start()
        await until(lambda: "one" in fake.objects["dynamodinstances"])
        fake.slow = 0.2
    begun = len(fake.requests)
    one.put(KEY + "1")
    await until(lambda: "patch" in {verb for verb, *_ in fake.requests[begun:]})
    if when == "last":
        one.put(KEY + "1", b"leaves")
    await one.end()
    await asyncio.sleep(2 * fake.slow)
    assert fake.objects["dynamodinstances"] == {}


async def test_a_view_outlives_a_fake_api_server_that_is_away(fake: FakeApi, pods: Any) -> None:
    one = pods("one")
    await one.start()
    await fake.put("endpointslices", endpoint_slice({"w": True, "v": True}))
    await fake.put("dynamodinstances", resource("w", {KEY + "7": "{}"}))
    await until(lambda: one.keys == [KEY + "7"])
    await until(lambda: "one" in fake.objects["dynamodinstances"])
    lists = fake.count("list")
    await fake.stop()
    await until(lambda: not one.bridge.inspection()["connected"])
    one.put(KEY + "1")
    await asyncio.sleep(0.5)
    assert one.keys == [KEY + "1", KEY + "7"], "what was known stays"
    await fake.start()
    await fake.put("dynamodinstances", resource("v", {KEY + "8": "{}"}))
    await until(lambda: KEY + "8" in one.keys)
    await until(
        lambda: KEY + "1" in fake.objects["dynamodinstances"].get("one", {"spec": {"keys": ()}})["spec"]["keys"]
    )
    await until(lambda: one.bridge.inspection()["connected"])
    assert fake.count("list") == lists, "watches go on where they stopped"


async def test_a_fake_api_server_that_has_dropped_its_history_is_listed_again(fake: FakeApi, pods: Any) -> None:
    one = pods("one")
    await one.start()
    await fake.put("endpointslices", endpoint_slice({"w": True, "v": True}))
    await fake.put("dynamodinstances", resource("w", {KEY + "7": "{}"}))
    await until(lambda: one.keys == [KEY + "7"])
    await fake.stop()
    fake.objects["dynamodinstances"].pop("w")
    await fake.put("dynamodinstances", resource("v", {KEY + "8": "{}"}))
    fake.forget()
    await fake.start()
    await until(lambda: one.keys == [KEY + "8"])


async def test_bookmarks_of_a_fake_api_server_save_the_list(fake: FakeApi, pods: Any) -> None:
    one = pods("one")
    await one.start()
    await until(lambda: one.bridge.inspection()["connected"] and "one" in fake.objects["dynamodinstances"])
    for plural in fake.objects:
        await fake.bookmark(plural)
        await fake.bookmark(plural)
    await asyncio.sleep(0.2)
    fake.oldest = fake.version - 2  # what came before the bookmarks is not kept
    lists = fake.count("list")
    await fake.stop()
    await fake.start()
    await until(lambda: one.bridge.inspection()["connected"])
    await fake.put("dynamodinstances", resource("w", {"v1/wanted/1/m": ""}))
    await until(lambda: one.keys == ["v1/wanted/1/m"])
    assert fake.count("list") - lists <= 1


@pytest.mark.parametrize(
    ("verb", "plural", "group"),
    [
        ("list", "endpointslices", "discovery.k8s.io"),
        ("watch", "dynamodinstances", "dynamod.dev"),
        ("patch", "dynamodinstances", "dynamod.dev"),
    ],
)
async def test_a_role_that_a_fake_api_server_lacks_is_named_and_waited_for(
    fake: FakeApi, pods: Any, caplog: pytest.LogCaptureFixture, verb: str, plural: str, group: str
) -> None:
    fake.refused.add((verb, plural))
    one = pods("one")
    await one.start()
    await until(lambda: "continuing" in caplog.text)
    (line,) = [one.getMessage() for one in caplog.records if "continuing" in one.getMessage()]
    assert f"this pod may not {verb} {plural}.{group} in namespace ns" in line
    assert f"grant the verb '{verb}' on '{plural}' of the API group '{group}' to its service account" in line
    assert not one.bridge.inspection()["connected"]
    fake.refused.clear()
    await until(lambda: one.bridge.inspection()["connected"] and one.bridge.inspection()["written"])


async def test_a_fake_api_server_without_the_definition_is_told_in_one_line(
    fake: FakeApi, pods: Any, caplog: pytest.LogCaptureFixture
) -> None:
    del fake.objects["dynamodinstances"]
    one = pods("one")
    await one.start()
    await until(lambda: "is the CustomResourceDefinition dynamodinstances.dynamod.dev installed?" in caplog.text)


async def test_fifty_pods_do_not_storm_a_fake_api_server(fake: FakeApi, pods: Any) -> None:
    many = [pods(f"p{number}") for number in range(50)]
    await asyncio.gather(*(pod.start() for pod in many))
    await until(lambda: len(fake.objects["dynamodinstances"]) == 50)
    await fake.put("endpointslices", endpoint_slice({f"p{number}": True for number in range(50)}))
    many[0].put(KEY + "1")
    await until(lambda: all(KEY + "1" in pod.keys for pod in many))
    before = len(fake.requests)
    await fake.stop()
    begun = time.monotonic()
    await asyncio.sleep(0.6)
    await fake.start()
    many[1].put(KEY + "2")
    await until(lambda: all(KEY + "2" in pod.keys for pod in many))
    assert fake.count("list") == 100, "no list again: versions were kept"
    tries = len(fake.requests) - before
    assert tries <= 50 * 2 * 2 + 60, f"{tries} requests within {time.monotonic() - begun:.1f} s"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "DYNAMOD_DISCOVERY is 'kubernetes', and this is no pod"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "POD_NAME is not set"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "A B"}, "POD_NAMESPACE|POD_NAME is 'A B'"),
        ({"DYNAMOD_KUBERNETES_URL": "host:6443"}, "DYNAMOD_KUBERNETES_URL is 'host:6443'"),
        ({"KUBERNETES_SERVICE_HOST": "h", "ETCD_ENDPOINTS": "localhost:2379"}, "and ETCD_ENDPOINTS is set"),
        ({"DYNAMOD_DISCOVERY": "consul"}, "DYNAMOD_DISCOVERY is 'consul'"),
    ],
)
def test_wrong_settings_name_the_variable(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        cluster_of({"DYNAMOD_DISCOVERY": "kubernetes", **environ}, lambda: None)


def test_a_pod_reads_its_place() -> None:
    names = {"POD_NAME": "w-0", "POD_NAMESPACE": "ns", "POD_UID": "u"}
    found = cluster_of(
        {
            "DYNAMOD_DISCOVERY": "kubernetes",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            **names,
            "DYNAMOD_TCP_ADDRESS": "10.244.0.5",
        },
        lambda: None,
    )
    assert str(found.backend) == "Kubernetes at https://127.0.0.1:443"
    assert found.joined
    assert found.variables == {"DYNAMOD_TCP_ADDRESS": "10.244.0.5"}
