"""What counts of other pods: both signals, foreign resources, keys that two pods hold."""

import random

import pytest

from dynamod.discovery.memory import MemoryRegistry
from dynamod.features.kubernetes.peers import Peers

from .fake_api import endpoint_slice, resource

INSTANCE, CARD, WANTED = "v1/instances/a/b/c/1", "v1/mdc/a/b/c/1", "v1/wanted/1/m"


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry(random.Random(1))


def keys(registry: MemoryRegistry) -> list[str]:
    return [key for key, _ in registry.items()]


def test_an_instance_counts_when_its_pod_is_ready_and_has_its_resource(registry: MemoryRegistry) -> None:
    peers = Peers(registry, "me")
    peers.instance("w-0", resource("w-0", {INSTANCE: "{}", CARD: "{}", WANTED: ""}))
    assert keys(registry) == [WANTED], "what a pod that is not ready waits for counts all the same"
    peers.slice("s", endpoint_slice({"w-0": False}))
    assert keys(registry) == [WANTED]
    peers.slice("s", endpoint_slice({"w-0": True}))
    assert keys(registry) == [INSTANCE, CARD, WANTED]
    peers.slice("s", endpoint_slice({"w-0": None}))
    assert INSTANCE in keys(registry), "no condition counts as ready"
    peers.slice("s", endpoint_slice({"other": True}))
    assert keys(registry) == [WANTED]
    peers.slice("second", endpoint_slice({"w-0": True}))
    peers.instance("w-0", None)
    assert keys(registry) == []


def test_a_new_pod_of_the_same_name_does_not_count_with_the_old_resource(registry: MemoryRegistry) -> None:
    peers = Peers(registry, "me")
    old = resource("w-0", {INSTANCE: "{}"})
    old["metadata"]["ownerReferences"][0]["uid"] = "uid-before"
    peers.instances({"w-0": old})
    peers.slices({"s": endpoint_slice({"w-0": True})})
    assert keys(registry) == []


def test_a_list_ends_what_it_does_not_have(registry: MemoryRegistry) -> None:
    peers = Peers(registry, "me")
    peers.slices({"s": endpoint_slice({"a": True, "b": True})})
    peers.instances({name: resource(name, {f"v1/instances/{name}": "{}"}) for name in ("a", "b", "me")})
    assert keys(registry) == ["v1/instances/a", "v1/instances/b"], "the own resource is what the registry has"
    peers.instances({"b": resource("b", {"v1/instances/b": "[]"})})
    assert registry.items() == [("v1/instances/b", b"[]")]
    peers.slices({})
    assert keys(registry) == []


def test_a_foreign_resource_is_skipped_and_counted(registry: MemoryRegistry, caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers(registry, "me")
    peers.instance("x", {"metadata": {"name": "x"}, "spec": {"keys": ["v1/instances/x"]}})
    peers.slice("y", {"metadata": {"name": "y"}, "endpoints": "none"})
    assert "the resource x is no DynamodInstance of this release and is skipped" in caplog.text
    assert peers.statistics()["skipped"] == 2
    peers.instance("x", resource("x", {"local/secret": "1"}))
    peers.slice("y", endpoint_slice({"x": True}, "y"))
    assert (keys(registry), peers.statistics()["skipped"]) == ([], 0), "keys that are not shared count never"


def test_of_two_pods_with_one_key_the_first_counts(registry: MemoryRegistry, caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers(registry, "me")
    peers.slices({"s": endpoint_slice({"a": True, "b": True})})
    peers.instance("a", resource("a", {INSTANCE: "a"}))
    peers.instance("b", resource("b", {INSTANCE: "b"}))
    assert registry.items() == [(INSTANCE, b"a")]
    assert f"{INSTANCE} is held by the pods a and b" in caplog.text
    peers.instance("a", None)
    assert registry.items() == [(INSTANCE, b"b")]
