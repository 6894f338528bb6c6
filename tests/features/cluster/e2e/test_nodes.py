"""Two and three daemons, a real NATS and a real etcd between them: each shows and reaches the others."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.nodes import Servers, front, instances, on, worker


def nodes(machine: Any, where: dict[str, str]) -> dict[str, Any]:
    """What `dynamo nodes` says, by node, as a node with this environment sees it."""
    done = machine.run("dynamo", "nodes", "--output", "json", **where)
    return {row["node"]: row for row in json.loads(done.out)}


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(machine: Any, node: str) -> int:
    """The daemon of a node."""
    return int((machine.folder / node / "d.sock.lock").read_text().split()[0])


def test_two_nodes_show_each_other(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    worker(machine, servers, "two")
    machine.until(lambda: instances(machine, url) == ["two"])
    one, two = on(machine, servers, "one"), on(machine, servers, "two")
    machine.until(lambda: {row["state"] for row in nodes(machine, one).values()} == {"answers"})
    for where, own, other in ((one, "one", "two"), (two, "two", "one")):
        seen = nodes(machine, where)
        assert {name: row["own"] for name, row in seen.items()} == {own: True, other: False}
        far = seen[other]
        assert (far["state"], far["why"], far["protocol"]) == ("answers", "", seen[own]["protocol"])
        assert far["address"].startswith("dynamod_daemon.commands-")
        assert abs(far["clock_ms"]) <= far["round_trip_ms"] / 2 + 1
        assert far["facts"]["models"] == ["sample"]
        assert 0 < far["facts"]["ready"] == far["facts"]["processes"]
    text = machine.run("dynamo", "nodes", **one).out
    assert "CLOCK MS" in text
    assert "one*" in text
