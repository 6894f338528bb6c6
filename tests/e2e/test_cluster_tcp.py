"""Nodes with a real etcd and requests over TCP, without NATS."""

import json
import os
import signal
from typing import Any

from .nodes import Servers, instances, models, on, worker
from .together import together


def place(machine: Any, servers: Servers, node: str) -> dict[str, str]:
    env = {**on(machine, servers, node), "DYNAMOD_TCP_ADDRESS": "127.0.0.1"}
    return {name: value for name, value in env.items() if not name.startswith("NATS")} | {"NATS_SERVER": ""}


@together
def test_requests_cross_nodes_over_tcp_and_survive_a_worker(machine: Any, servers: Servers) -> None:
    started = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0, **place(machine, servers, "one"))
    url = started.ready()
    for node in ("two", "three"):
        worker(machine, servers, node, env=place(machine, servers, node))
    machine.until(lambda: instances(machine, url) == ["three", "two"])
    assert models(machine, url) == ["sample"]
    fields = {"max_tokens": 200, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(4)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(4)]
    rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / "two/d.sock")[1]
    os.kill(next(row["pid"] for row in rows if row["component"] == "Worker"), signal.SIGKILL)
    assert [stream.read().text for stream in streams] == whole
    status = machine.run("dynamo", "status", **place(machine, servers, "one"))
    assert "TCP at 127.0.0.1" in status.out, status.err
    nodes = machine.run("dynamo", "nodes", "--output", "json", **place(machine, servers, "one"))
    assert sorted(one["node"] for one in json.loads(nodes.out)) == ["one", "three", "two"], nodes.out
    assert {one["state"] for one in json.loads(nodes.out)} == {"answers"}, "commands cross nodes over TCP"
