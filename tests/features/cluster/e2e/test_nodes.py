"""Two and three daemons, a real NATS and a real etcd between them: each shows and reaches the others."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.nodes import Servers, front, instances, on, worker
from tests.e2e.together import together

GONE = "(does not answer within 0.8 s|nothing has come from the other end|it left the registry without a word)"


def nodes(machine: Any, where: dict[str, str]) -> dict[str, Any]:
    """What `dynamo nodes` says, by node, as a node with this environment sees it."""
    done = machine.run("dynamo", "nodes", "--output", "json", **where)
    return {row["node"]: row for row in json.loads(done.out)}


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(machine: Any, node: str) -> int:
    """The daemon of a node."""
    return int((machine.folder / node / "d.sock.lock").read_text().split()[0])


def joined(machine: Any, servers: Servers, *names: str, **env: str) -> dict[str, str]:
    """Node one with a frontend, the others with a worker each, all of which answer; the environment of node one."""
    _, url = front(machine, servers)
    for name in names:
        worker(machine, servers, name, env=env)
    machine.until(lambda: instances(machine, url) == sorted(names))
    here = on(machine, servers, "one")
    machine.until(lambda: {row["state"] for row in nodes(machine, here).values()} == {"answers"})
    return {**here, "URL": url}


@together
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


@together
def test_all_nodes_from_any_node(machine: Any, servers: Servers) -> None:
    joined(machine, servers, "two")
    for name in ("one", "two"):
        where = on(machine, servers, name)
        rows = json.loads(machine.run("dynamo", "ps", "--all", "--output", "json", **where).out)
        assert {(row["node"], row["component"]) for row in rows} >= {("one", "Frontend"), ("two", "Worker")}
        text = machine.run("dynamo", "ps", "--all", **where).out
        assert "two/run-mocker/Worker.0" in text or "| two/" in text, text
        done = machine.run("dynamo", "status", "--all", "--output", "json", **where)
        told = {one["node"]: one["status"] for one in json.loads(done.out)}
        assert done.code == 0
        assert {node: said["node"] for node, said in told.items()} == {"one": "one", "two": "two"}
        assert told["two"]["models"] == ["sample"]
        assert machine.run("dynamo", "status", "--all", **where).out.count("dynamod 0.") == 2
        top = machine.run("dynamo", "top", "--all", "--once", "-i", "0.2", "--output", "json", **where)
        view = json.loads(top.out)
        assert (sorted(view["nodes"]), view["missing"]) == (["one", "two"], {})
        workers = [row for row in view["processes"] if row["worker"] is not None]
        assert [(row["node"], row["process"].startswith("two/")) for row in workers] == [("two", True)]
        assert machine.run("dynamo", "top", "--all", "--once", "-i", "0.2", **where).out.startswith("2 nodes, ")


@together
def test_reading_at_another_node(machine: Any, servers: Servers) -> None:
    here = joined(machine, servers, "two")
    url = here["URL"]
    there = on(machine, servers, "two")
    lines = machine.run("dynamo", "logs", "-n", "5", "two/Worker", **here).out
    assert lines == machine.run("dynamo", "logs", "-n", "5", "Worker", **there).out
    assert "Worker" in lines
    assert machine.run("dynamo", "logs", "two/", **here).out.count("\n") >= lines.count("\n")
    assert "no component 'Nobody'" in machine.run("dynamo", "logs", "two/Nobody", **here).err
    actors = json.loads(machine.run("dynamo", "inspect", "two/Worker", "--output", "json", **here).out)
    assert all("Worker" in f"{one['process']}{one['path']}" for one in actors)
    machine.begin(url, "hello", request="r1", max_tokens=3).answer()
    decision = machine.run("dynamo", "explain", "one/r1", "--output", "json", **there)
    assert json.loads(decision.out)[-1]["request"] == "r1", decision.err
    follower = machine.start("dynamo", "logs", "-f", "-n", "0", "one/Frontend", **there)
    machine.until(
        lambda: machine.begin(url, "hello", request="seen", max_tokens=1).answer() and "id=seen" in follower.out
    )
    follower.end()


@together
def test_changes_need_the_setting_of_the_other_node(machine: Any, servers: Servers) -> None:
    here = joined(machine, servers, "two")
    worker(machine, servers, "open", env={"DYNAMOD_REMOTE_COMMANDS": "all"})
    machine.until(lambda: nodes(machine, here).get("open", {}).get("state") == "answers")
    for words in (("scale", "two/Worker", "2"), ("restart", "two/Worker"), ("drain", "two/Worker"), ("stop", "two/")):
        refused = machine.run("dynamo", *words, **here)
        assert refused.code == 1
        assert "set DYNAMOD_REMOTE_COMMANDS=all for the daemon there" in refused.err, refused.err
        assert refused.err.count("\n") == 1
    scaled = machine.run("dynamo", "scale", "open/Worker", "2", "--output", "json", **here)
    assert [row["component"] for row in json.loads(scaled.out)] == ["Worker", "Worker"], scaled.err
    machine.until(
        lambda: len(json.loads(machine.run("dynamo", "ps", "-o", "json", **on(machine, servers, "open")).out)) == 2
    )
    assert machine.run("dynamo", "restart", "open/Worker", "--timeout", "5", **here).code == 0
    stopped = machine.run("dynamo", "stop", "open/", **here)
    assert (stopped.code, stopped.out) == (0, "stopping dynamod\n"), stopped.err
    machine.until(lambda: "open" not in nodes(machine, here))


@together
def test_a_wrong_setting_is_one_line(machine: Any) -> None:
    words = ("dynamo-run", "in=http", "out=echo_full", "--http-port", 0)
    done = machine.start(*words, DYNAMOD_REMOTE_COMMANDS="write").wait(20)
    assert done.code != 0
    assert "error: DYNAMOD_REMOTE_COMMANDS is 'write'; read (default)" in done.err.splitlines()[-1], done.err
    left_out = machine.run("dynamo", "ps", "--all", DYNAMOD_FEATURES="-cluster")
    assert "`dynamo ps --all` belongs to the feature 'cluster', which is off" in left_out.err
    left_out = machine.run("dynamo", "top", "--all", "--once", DYNAMOD_FEATURES="-cluster")
    assert "--all needs the feature 'cluster', which is off" in left_out.err


@together
def test_a_change_that_takes_the_last_worker_is_refused_as_here(machine: Any, servers: Servers) -> None:
    here = joined(machine, servers, "two", DYNAMOD_REMOTE_COMMANDS="all")
    refused = machine.run("dynamo", "drain", "two/Worker", **here)
    assert (refused.code, "--force" in refused.err, "node two" in refused.err) == (1, True, True), refused.err
    assert machine.run("dynamo", "drain", "two/Worker", "--force", "--timeout", "5", **here).code == 0


@together
def test_a_node_that_does_not_answer_is_a_row(machine: Any, servers: Servers) -> None:
    """First there is no answer, then the lease has expired; then the daemon is back."""
    here = joined(machine, servers, "two", "three", ETCD_LEASE_TTL="2")
    pid = pid_of(machine, "three")
    follower = machine.start("dynamo", "logs", "-f", "-n", "1", "three/Worker", **here)
    follower.prints("Worker")
    with frozen(pid):
        begun = time.monotonic()
        path = machine.folder / "one/d.sock"
        status, rows = machine.raw("GET", "/v1/nodes", socket_path=path)
        assert (status, time.monotonic() - begun < 1.0) == (200, True)
        seen = {row["node"]: row for row in rows}
        assert seen["two"]["state"] == "answers"
        assert (seen["three"]["state"], seen["three"]["why"]) == ("no answer", "does not answer within 0.8 s")
        shown = machine.run("dynamo", "nodes", **here)
        assert (shown.code, "three: does not answer" in shown.out) == (1, True)
        for words in (("ps", "--all"), ("status", "--all"), ("top", "--all", "--once", "-i", "0.1")):
            shown = machine.run("dynamo", *words, **here)
            assert re.search(f"three.*{GONE}|node three.*\n.*{GONE}", shown.out), shown.out
            assert "two/" in shown.out or words[0] == "status"
        refused = machine.run("dynamo", "logs", "three/Worker", **here)
        machine.until(lambda: re.search(f"error: node three: {GONE}", follower.out))
        assert follower.wait().code == 0
        assert re.search(f"error: node three: {GONE}", refused.err), refused.err
        machine.until(lambda: nodes(machine, here)["three"]["state"] == "lost", 10)
    machine.until(lambda: nodes(machine, here)["three"]["state"] == "answers", 10)


@together
def test_a_node_that_ends_in_good_order_is_gone(machine: Any, servers: Servers) -> None:
    _, url = front(machine, servers)
    two = worker(machine, servers, "two")
    machine.until(lambda: instances(machine, url) == ["two"])
    here = on(machine, servers, "one")
    machine.until(lambda: nodes(machine, here).get("two", {}).get("state") == "answers")
    two.end()
    machine.until(lambda: [*nodes(machine, here)] == ["one"])
    worker(machine, servers, "two")
    machine.until(lambda: nodes(machine, here).get("two", {}).get("state") == "answers")
    os.kill(pid_of(machine, "two"), signal.SIGKILL)
    machine.until(lambda: nodes(machine, here)["two"]["why"] == "the messages have no receiver: the process is gone")


@together
def test_two_daemons_of_one_machine_without_nats(machine: Any, servers: Servers) -> None:
    """Their commands go over unix sockets."""
    one, two = ({**on(machine, servers, name), "NATS_SERVER": ""} for name in ("one", "two"))
    machine.start("dynamo-run", "in=http", "out=echo_full", "--http-port", 0, **one).ready()
    machine.start("dynamo-run", "in=http", "out=echo_full", "--http-port", 0, **two).ready()
    machine.until(lambda: nodes(machine, one).get("two", {}).get("state") == "answers")
    assert nodes(machine, one)["two"]["address"].endswith("/commands.sock")
    assert machine.run("dynamo", "logs", "-n", "1", "two/Frontend", **one).code == 0
    alone = {**one, "DYNAMOD_CLUSTER": "off", "DYNAMOD_SOCKET": str(machine.folder / "alone.sock")}
    machine.start("dynamo-run", "in=http", "out=echo_full", "--http-port", 0, **alone).ready()
    shown = machine.run("dynamo", "nodes", **alone)
    assert (shown.code, "no other node is known" in shown.out) == (0, True)


@together
def test_the_doctor_names_the_node_that_differs(machine: Any, servers: Servers) -> None:
    here = joined(machine, servers, "two", "three")
    healthy = machine.run("dynamo", "doctor", **here)
    assert "ok   nodes: 3 nodes answer and agree" in healthy.out, healthy.out
    odd = Path(machine.folder) / "odd.json"
    odd.write_text(json.dumps({"block_size": 32, "num_gpu_blocks": 4096}))
    words = ("dynamo-run", "in=dyn://llama3B.backend.generate", "out=mocker", "sample", "--extra-engine-args", odd)
    machine.start(*words, **on(machine, servers, "four")).prints("ready")
    machine.until(lambda: nodes(machine, here).get("four", {}).get("state") == "answers")
    ill = machine.run("dynamo", "doctor", "--output", "json", **here)
    found = [one["found"] for one in json.loads(ill.out) if one["check"] == "agreement"]
    assert found == ["model sample: KV block size differs between nodes: four has 32, the others have 16"]
    assert ill.code == 1
    without = machine.run("dynamo", "doctor", **{**here, "DYNAMOD_FEATURES": "-cluster"})
    assert "agreement" not in without.out


@together
def test_a_name_that_is_taken_is_said_and_cuts_nobody(machine: Any, servers: Servers) -> None:
    """Two daemons of one machine are called two; each has a control socket, and each a worker."""
    _, url = front(machine, servers)
    worker(machine, servers, "two", speed=20)
    machine.until(lambda: instances(machine, url) == ["two"])
    stream = machine.stream(url, "hello", max_tokens=200, ignore_eos=True)
    again = on(machine, servers, "three", DYNAMOD_NODE="two")
    second = worker(machine, servers, "three", speed=20, env={"DYNAMOD_NODE": "two"})
    machine.until(lambda: instances(machine, url) == ["two", "two"])
    stream.read()
    assert (stream.error, stream.done) == (None, True)
    said = "another daemon has the name of this node"
    for where in (on(machine, servers, "two"), again):
        machine.until(lambda where=where: said in machine.run("dynamo", "status", **where).out)
    said = "another daemon of this machine is called two too: give one of them another name (DYNAMOD_NODE)"
    assert said in second.err
    for number in range(4):
        assert machine.chat(url, f"topic {number}", max_tokens=4)
