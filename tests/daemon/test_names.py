"""Names of nodes: what may be one, and what is said when two machines have the same."""

import logging
import os
import random
import subprocess

import msgspec
import pytest

from dynamod.daemon.names import machine, node_key, node_name, watch_namesakes
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.discovery import NodeRecord
from dynamod.message.errors import UserError


def test_a_name_can_stand_in_a_key() -> None:
    assert node_name({"DYNAMOD_NODE": "gpu-1.rack_2"}) == "gpu-1.rack_2"
    assert node_name({})
    for name in ("a b", "a/b", "ä", "x" * 200):
        with pytest.raises(UserError, match="DYNAMOD_NODE"):
            node_name({"DYNAMOD_NODE": name})


def test_another_machine_of_our_name(caplog: pytest.LogCaptureFixture) -> None:
    registry = MemoryRegistry(random.Random(1))
    lease = registry.grant()
    assert machine() == machine()
    with caplog.at_level(logging.ERROR):
        registry.put_foreign(f"v1/nodes/one/{machine()}/77", b"")  # another daemon of this machine
        others = watch_namesakes(registry, "one", lease)
        registry.put_foreign("v1/nodes/two/0123/78", b"")
        assert (others, caplog.text) == (set(), "")
        registry.put_foreign("v1/nodes/one/0123/79", b"")
    assert others == {"0123"}
    assert "another machine is called one too" in caplog.text
    registry.delete_foreign("v1/nodes/one/0123/79")
    assert others == set()
    assert any(key.startswith("v1/nodes/one/") for key, _, _ in registry.own_items())


def test_another_daemon_of_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    """One that runs; the key of one that was killed stays until its lease expires."""
    registry = MemoryRegistry(random.Random(1))
    lease = registry.grant()
    with subprocess.Popen(["sleep", "60"]) as other:
        record = msgspec.json.encode(NodeRecord(pid=other.pid))
        others = watch_namesakes(registry, "one", lease)
        registry.put_foreign(f"v1/nodes/one/{machine()}/77", record)
        registry.put_foreign(f"v1/nodes/one/{machine()}/77", record)
        assert len(others) == 1
        assert caplog.text.count("another daemon of this machine is called one too: give one of them") == 1
        registry.delete_foreign(f"v1/nodes/one/{machine()}/77")
        assert others == set()
        other.kill()
    registry.put_foreign(f"v1/nodes/one/{machine()}/78", record)
    registry.put_foreign(f"v1/nodes/one/{machine()}/79", msgspec.json.encode(NodeRecord(pid=os.getpid())))
    registry.put_foreign(f"v1/nodes/one/{machine()}/80", b"no record")
    assert others == set()


def test_what_the_node_says_of_itself_stays() -> None:
    registry = MemoryRegistry(random.Random(1))
    lease = registry.grant()
    watch_namesakes(registry, "one", lease)
    assert registry.own(node_key("one", lease)) == (b"", lease)
    registry.put(node_key("one", lease), b"{}", lease)
    watch_namesakes(registry, "one", lease)
    assert registry.own(node_key("one", lease)) == (b"{}", lease)
