"""Nodes in network namespaces of their own, with a cable between them that is pulled."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from .nodes import Servers, front, instances, models, worker


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


def allowed() -> bool:
    name = f"dmt{os.getpid() % 100000}"
    return bool(shutil.which("ip")) and os.geteuid() == 0 and ip("netns", "add", name) and ip("netns", "del", name)


@dataclass(frozen=True)
class Cable:
    """Between this namespace and one called `name`."""

    name: str
    here: str
    address: str

    def plug(self, there: bool) -> None:
        assert ip("link", "set", self.here, "up" if there else "down")


@pytest.fixture
def cable() -> Iterator[Cable]:
    if not allowed():
        pytest.skip("needs root and ip netns")
    number = os.getpid() % 100000
    name, here, there = f"dm{number}", f"dma{number}", f"dmb{number}"
    subnet = f"10.{200 + number % 50}.{number // 50 % 250}"
    try:
        assert ip("netns", "add", name)
        assert ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        assert ip("addr", "add", f"{subnet}.1/24", "dev", here)
        assert ip("link", "set", here, "up")
        for words in (
            ("addr", "add", f"{subnet}.2/24", "dev", there),
            ("link", "set", there, "up"),
            ("link", "set", "lo", "up"),
        ):
            assert ip("-n", name, *words)
        yield Cable(name, here, f"{subnet}.1")
    finally:
        ip("link", "del", here)
        ip("netns", "del", name)


@pytest.fixture
def servers(machine: Any, cable: Cable) -> Iterator[Servers]:
    started = Servers(machine, cable.address)
    yield started
    started.down()


@pytest.mark.slow
def test_a_pulled_cable(machine: Any, servers: Servers, cable: Cable) -> None:
    """Streams of the node that is gone go on elsewhere; it leaves the list, and is back with the cable."""
    _, url = front(machine, servers)
    worker(machine, servers, "two", within=cable.name, env={"ETCD_LEASE_TTL": "3"})
    worker(machine, servers, "three")
    machine.until(lambda: instances(machine, url) == ["three", "two"])
    fields = {"max_tokens": 600, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(2)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    cable.plug(False)
    begun = time.monotonic()
    assert [stream.read().text for stream in streams] == whole
    assert time.monotonic() - begun < 20
    machine.until(lambda: instances(machine, url) == ["three"], 15)
    cable.plug(True)
    machine.until(lambda: instances(machine, url) == ["three", "two"], 30)
    for number in range(4):
        assert machine.chat(url, f"and now {number}", max_tokens=3)
    assert models(machine, url) == ["sample"]
    assert all(one["pid"] for one in json.loads(machine.ask(url, "/health")[1])["instances"])
