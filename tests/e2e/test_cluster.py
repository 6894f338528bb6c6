"""Two nodes, a real NATS and a real etcd between them."""

import json
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dynamod.daemon import infra

SLOW = 25.0


class Servers:
    """NATS and etcd on free ports; each can be stopped, frozen and started again with its data."""

    def __init__(self, machine: Any) -> None:
        self.folder = Path(machine.folder) / "infra"
        self.ports = {"nats_port": machine.port(), "etcd_port": machine.port()}
        self.up()

    def up(self) -> None:
        """Start what does not run."""
        self.servers = {server.name: server for server in infra.up(self.folder, **self.ports)}

    def kill(self, name: str) -> None:
        """End one at once, and wait until it is gone."""
        os.kill(self.servers[name].pid, signal.SIGKILL)
        while self.servers[name].lives:
            time.sleep(0.005)

    @property
    def env(self) -> dict[str, str]:
        return infra.environment(list(self.servers.values()))


@pytest.fixture
def servers(machine: Any) -> Iterator[Servers]:
    started = Servers(machine)
    yield started
    infra.down(started.folder)


def on(machine: Any, servers: Servers, node: str, **more: str) -> dict[str, str]:
    """What a command on a node of that name is told: its own socket is its own daemon."""
    folder = machine.folder / node
    folder.mkdir(exist_ok=True)
    return {
        **servers.env,
        "DYNAMOD_CLUSTER": "auto",
        "DYNAMOD_NODE": node,
        "DYNAMOD_SOCKET": str(folder / "d.sock"),
        **more,
    }


def models(machine: Any, url: str) -> list[str]:
    return sorted(model["id"] for model in json.loads(machine.ask(url, "/v1/models")[1])["data"])


def fast(machine: Any, speed: float = 1) -> Path:
    path = Path(machine.folder) / f"mocker-{speed}.json"
    path.write_text(json.dumps({"speedup_ratio": speed, "block_size": 16}))
    return path


def worker(machine: Any, servers: Servers, node: str, *words: Any, speed: float = 1) -> Any:
    started = machine.start(
        *("dynamo-run", "in=dyn://llama3B.backend.generate", "out=mocker", "sample", "--extra-engine-args"),
        *(fast(machine, speed), *words),
        **on(machine, servers, node),
    )
    started.prints("ready")
    return started


def front(machine: Any, servers: Servers, *words: Any) -> tuple[Any, str]:
    started = machine.start(
        "dynamo-run", "in=http", "out=auto", "--http-port", 0, *words, **on(machine, servers, "one")
    )
    return started, started.ready()


def test_a_model_comes_and_goes_with_its_node(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    assert models(machine, url) == []
    second = worker(machine, servers, "two")
    machine.until(lambda: models(machine, url) == ["sample"])
    alone = machine.chat(url, "hello", max_tokens=50)
    assert machine.stream(url, "hello", max_tokens=50).read().text == alone
    health = json.loads(machine.ask(url, "/health")[1])
    assert [one["node"] for one in health["instances"]] == ["two"]
    second.end()
    machine.until(lambda: models(machine, url) == [], 2.0)


@pytest.mark.parametrize("mode", ["random", "round-robin", "kv"])
def test_router_modes_across_nodes(machine: Any, servers: Servers, mode: str) -> None:
    _, url = front(machine, servers, "--router-mode", mode)
    for node in ("two", "three"):
        worker(machine, servers, node, speed=20)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    long = "one two three four five six seven " * 20
    for number in range(16):
        text = long if mode == "kv" else f"text {number}"
        begun = machine.begin(url, text, request=f"r{number}", max_tokens=3, ignore_eos=True)
        begun.answer()
    socket = machine.folder / "one/d.sock"
    chosen = [machine.raw("GET", f"/v1/requests/r{number}/decision", socket_path=socket)[1][-1] for number in range(16)]
    homes = {record["chosen"] for record in chosen}
    if mode == "kv":
        assert chosen[-1]["overlap"] > 0, "KV events cross nodes"
    else:
        assert len(homes) == 2
    if mode == "round-robin":
        assert all(a["chosen"] != b["chosen"] for a, b in pairwise(chosen))


def test_kill_of_a_remote_worker_is_noticed_at_once(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 300, "ignore_eos": True}
    whole = [machine.chat(url, f"topic {number}", **fields) for number in range(4)]
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(4)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    os.kill(next(row["pid"] for row in rows if row["component"] == "Worker"), signal.SIGKILL)
    assert [stream.read().text for stream in streams] == whole
    text = machine.ask(url, "/metrics")[1]
    lines = [line for line in text.splitlines() if "migration_duration_seconds_bucket" in line and 'le="0.25"' in line]
    [fast] = [line for line in lines if 'outcome="success"' in line]
    assert float(fast.rpartition(" ")[2]) >= 1, "a quarter of a second is far above the bound, and below any clock"


def test_a_stopped_remote_worker_is_left_and_its_node_says_so(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    for node in ("two", "three"):
        worker(machine, servers, node)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    fields = {"max_tokens": 500, "ignore_eos": True}
    whole = [machine.chat(url, f"topic {number}", **fields) for number in range(2)]
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(2)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    pid = next(row["pid"] for row in rows if row["component"] == "Worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert [stream.read().text for stream in streams] == whole
    finally:
        os.kill(pid, signal.SIGCONT)
