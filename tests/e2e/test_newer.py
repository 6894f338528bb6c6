"""A process of a newer release joins a node of this one: what it says beyond this release is skipped and shown."""

import json
from typing import Any

from .together import together

NEWER = """
import socket, struct, sys, time
import msgspec

def say(*message):
    payload = msgspec.msgpack.encode(message)
    link.sendall(struct.pack("<I", len(payload)) + payload)

link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
link.sendall(b"dynamod\\x01")
say("hello", "newer", 0, 0, "9.9.9", "file", 0.0, 2, "a field of a newer release")
place = "n/c/e/7"
instance = {"namespace": "n", "component": "c", "endpoint": "e", "instance_id": 7, "transport": {}, "mood": "good"}
later = {"protocol": 99, "since": 50, "node": "far", "process": "dreams/Worker.0"}
card = {"name": "dream", "kind": "text", "dreams": {"of": "sheep"}, "capabilities": {"telepathy": True}}
say("put", f"v1/instances/{place}", msgspec.json.encode(instance))
say("put", f"v1/mdc/{place}", msgspec.json.encode(card))
say("put", f"v1/instances/{place}8", msgspec.json.encode({**instance, "instance_id": 8, "state": "dreaming"}))
say("put", f"v1/instances/{place}9", msgspec.json.encode({**instance, "instance_id": 9, **later}))
say("dream", {"of": "sheep"})
print("said", flush=True)
while True:
    say("heartbeat", None, 0, 0.0, 0, 0, "a field of a newer release")
    time.sleep(0.5)
"""


@together
def test_what_a_newer_release_says_is_skipped_counted_and_shown_by_doctor(machine: Any) -> None:
    command = machine.agg()
    url = command.ready()

    def found() -> dict[str, Any]:
        findings = json.loads(machine.run("dynamo", "doctor", "--output", "json").out)
        (one,) = [finding for finding in findings if finding["check"] == "releases"]
        return dict(one)

    assert (found()["state"], found()["mend"]) == ("ok", "")
    machine.script(NEWER, f"{machine.socket}.link").prints("said")
    machine.until(lambda: '"dream"' in machine.ask(url, "/v1/models")[1], what="the newer worker's model is there")
    told = machine.until(lambda: (one := found())["state"] == "warn" and one)
    for what in ("messages of unknown kinds", "registry values that cannot be read", "unknown fields of registry"):
        assert what in told["found"]
    assert "upgrade this node" in told["mend"]
    logs = machine.run("dynamo", "logs").out
    assert "'dreams' of a ModelCard" in logs
    assert "'capabilities.telepathy' of a ModelCard" in logs
    assert "a message between process and daemon of kind 'dream'" in logs
    status = machine.run("dynamo", "status")
    assert status.code not in (0, None)
    assert "dreams/Worker.0 on far speaks protocol 99 and works with protocols from 50 on" in status.out
    assert "upgrade this node" in status.out
    assert machine.run("dynamo", "doctor").code not in (0, None)
    assert machine.chat(url, "hello")
    assert not any(row["restarts"] for row in machine.ps())
    command.tree()
