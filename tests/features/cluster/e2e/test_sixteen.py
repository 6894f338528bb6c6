"""Sixteen daemons on one machine: one frozen, one cut off from NATS, one of the last release."""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.nodes import Servers, on, put
from tests.e2e.old import LAST_RELEASE, checkout, environment
from tests.e2e.ways import Way

NAMES = [f"n{number:02}" for number in range(16)]
HERE, FROZEN, CUT, OLD = NAMES[0], NAMES[5], NAMES[9], NAMES[13]
WELL = [name for name in NAMES if name not in (FROZEN, CUT, OLD)]


@pytest.fixture
def way(servers: Servers) -> Iterator[Way]:
    """To NATS, for one node."""
    made = Way(servers.ports["nats_port"])
    yield made
    made.close()


def nodes(machine: Any, node: str = HERE) -> tuple[float, dict[str, Any]]:
    """Seconds for the answer of a daemon, and its rows by node."""
    begun = time.monotonic()
    status, rows = machine.raw("GET", "/v1/nodes", socket_path=machine.folder / node / "d.sock")
    assert status == 200, rows
    return time.monotonic() - begun, {row["node"]: row for row in rows}


@pytest.mark.slow
def test_each_fault_is_a_row_within_a_second(machine: Any, servers: Servers, way: Way) -> None:
    old = machine.start(
        "dynamod", cwd=checkout(LAST_RELEASE).name, **on(machine, servers, OLD, **environment(LAST_RELEASE))
    )
    daemons = {OLD: old}
    for name in (*WELL, FROZEN, CUT):
        more = {"NATS_SERVER": f"nats://127.0.0.1:{way.port}"} if name == CUT else {}
        daemons[name] = machine.start("dynamod", **on(machine, servers, name, ETCD_LEASE_TTL="60", **more))

    def joined() -> bool:
        try:
            states = {name: row["state"] for name, row in nodes(machine)[1].items()}
        except OSError:  # no daemon yet
            return False
        return states == {**dict.fromkeys(NAMES, "answers"), OLD: "no commands"}

    machine.until(joined, 60)
    put(servers, "v1/nodes/n99/machine/77", b'{"version": "9.0.0", "protocol": 9, "moods": ["fine"]}')
    pid = int((machine.folder / FROZEN / "d.sock.lock").read_text().split()[0])
    way.cut()
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(5):
            seconds, rows = nodes(machine)
            assert seconds < 1.0
            states = {name: rows[name]["state"] for name in NAMES}
            assert states == {
                **dict.fromkeys(WELL, "answers"),
                **dict.fromkeys((FROZEN, CUT), "no answer"),
                OLD: "no commands",
            }
            reasons = {rows[name]["why"] for name in (FROZEN, CUT)}
            assert reasons <= {"does not answer within 0.8 s", "nothing has come from the other end for 3 s"}
        assert all(abs(rows[name]["clock_ms"]) < 500 for name in WELL)
        newer = rows["n99"]
        assert (newer["version"], newer["protocol"], newer["state"]) == ("9.0.0", 9, "no commands")
        assert rows[HERE]["protocol"] == rows[FROZEN]["protocol"], "known from the registry"
        # The node that is cut off reaches the daemons of its own machine over their unix sockets.
        machine.until(lambda: nodes(machine, CUT)[1][HERE]["state"] == "answers", 15)
        text = machine.run("dynamo", "ps", "--all", "--output", "json", **on(machine, servers, HERE))
        assert {row["node"] for row in json.loads(text.out)} == {FROZEN, CUT, OLD, "n99"}, "no other node runs anything"
        refused = machine.run("dynamo", "logs", f"{OLD}/Worker", **on(machine, servers, HERE))
        assert "takes no commands from other nodes" in refused.err
    finally:
        os.kill(pid, signal.SIGCONT)
        way.heal()
    machine.until(lambda: all(nodes(machine)[1][name]["state"] == "answers" for name in (FROZEN, CUT)), 30)
    ending = daemons.pop(WELL[1])
    ending.send(signal.SIGTERM)
    assert ending.wait(30).code == 0
    machine.until(lambda: WELL[1] not in nodes(machine)[1])
    for daemon in daemons.values():
        daemon.send(signal.SIGTERM)
    for name, daemon in daemons.items():
        assert daemon.wait(30).code == 0, (name, daemon.err)
